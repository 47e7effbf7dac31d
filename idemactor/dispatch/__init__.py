"""Durable dispatch: the relay that delivers what was accepted, and the reconciler that settles what is left unknown.

Both are callers like any other: they claim and settle with the shards' ordinary commands and fencing tokens, so that
whatever happens here, the state table decides.
"""
