"""An order API in front of PostgreSQL and a matching engine, twice: with idemactor, and with PostgreSQL alone."""
