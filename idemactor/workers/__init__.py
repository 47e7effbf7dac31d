"""Several processes on one data directory: each owns its share of the shards and passes on what is not its own."""
