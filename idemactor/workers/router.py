"""The router of one worker among several: its own shards as ever, and the others' behind their workers."""

from __future__ import annotations

from collections.abc import Sequence

from idemactor.observability.observer import Observer
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Place, Router
from idemactor.workers.peer import Peer


class RemoteShard:
    """A shard of another worker. What it says of itself is how it stood when it was last inspected."""

    def __init__(self, number: int, peer: Peer) -> None:
        self.number = number
        self._peer = peer

    def submit(self, envelopes: Sequence[Envelope]) -> int:
        """Pass commands on to the owner; returns how many there was room for."""
        return self._peer.submit(self.number, envelopes)

    @property
    def queue_depth(self) -> int:
        return self._peer.standings.get(self.number, (0, False, False))[0]

    @property
    def quarantined(self) -> bool:
        return not self._peer.up.is_set() or self._peer.standings.get(self.number, (0, False, False))[1]

    @property
    def in_memory(self) -> bool:
        return self._peer.up.is_set() and self._peer.standings.get(self.number, (0, False, False))[2]

    def close(self) -> None:
        """Nothing: its owner closes it."""

    async def run(self) -> None:
        """Nothing: its owner runs it."""


class WorkerRouter(Router):
    """Like every router; what goes to other workers leaves once for each of them, when all of it is there."""

    def __init__(self, shards: Sequence[Place], peers: Sequence[Peer], observer: Observer) -> None:
        super().__init__(shards, observer)
        self._peers = tuple(peers)

    def route(self, envelopes: Sequence[Envelope]) -> None:
        super().route(envelopes)
        self._flush()

    def hand(self, shard: int, envelopes: list[Envelope]) -> None:
        super().hand(shard, envelopes)
        self._flush()

    def _flush(self) -> None:
        for peer in self._peers:
            peer.flush()
