"""A shard that another worker owns, as the router of this one sees it."""

from __future__ import annotations

from collections.abc import Sequence

from idemactor.shard.mailbox import Envelope
from idemactor.workers.peer import Peer


class RemoteShard:
    """A shard of another worker. What it says of itself is how it stood when it was last inspected."""

    def __init__(self, number: int, peer: Peer) -> None:
        self.number = number
        self._peer = peer

    def submit(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Pass commands on to the owner; returns those that there was no room for."""
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

    @property
    def reachable(self) -> bool:
        return self._peer.up.is_set()

    def stop_waiting(self) -> None:
        """Nothing: its owner does."""

    def close(self) -> None:
        """Nothing: its owner closes it."""

    async def run(self) -> None:
        """Nothing: its owner runs it."""
