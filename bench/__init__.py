"""The benchmark harness: every claim of speed is a run of this."""
