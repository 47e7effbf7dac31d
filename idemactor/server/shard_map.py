"""The shard map: which process owns which shard and where it listens, for clients that spare themselves a hop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from idemactor.core.keys import worker_of

HASH: Final = "blake2b-64"
"""The name of ``core.keys.identity_hash``, as the contract describes it."""

Addresses = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Who owns what.

    Attributes:
        shards: How many shards there are.
        here: The worker that this process is.
        http: For each worker, where its HTTP door listens for itself alone; of one worker, where everybody does.
        rpc: The same for MessagePack-RPC.
    """

    shards: int = 1
    here: int = 0
    http: tuple[Addresses, ...] = ((),)
    rpc: tuple[Addresses, ...] = ((),)

    def body(self, tenant: str) -> dict[str, object]:
        """The members of the answer; ``tenant`` is the caller's, which is part of what is hashed."""
        count = len(self.rpc)
        workers = [
            {
                "worker": worker,
                "shards": [shard for shard in range(self.shards) if worker_of(shard, count) == worker],
                "http": list(self.http[worker]),
                "rpc": list(self.rpc[worker]),
            }
            for worker in range(count)
        ]
        return {"shards": self.shards, "hash": HASH, "tenant": tenant, "worker": self.here, "workers": workers}


ALONE: Final = ShardMap()
"""One process that listens nowhere: a server without doors."""
