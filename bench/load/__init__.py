"""Load generators of our own: what wrk, redis-benchmark and pgbench cannot do, in processes beside the harness."""
