"""An actor-model, sharded dedup server: of any number of callers with one key, exactly one is told to go on."""

__version__ = "0.1.0"
