"""How long a holder may trust its lease, by its own clock. Pure arithmetic; the keeping is in ``keeper.py``.

The server's times are the server's. What the holder knows for certain is when it asked: a lease that was granted in
answer to a question cannot have begun before the question was sent, so that it cannot end earlier than that moment and
the length of the lease together. Trusting it until then is safe, whatever the clocks of two machines show.
"""

from __future__ import annotations

from typing import Final

RENEWALS: Final = 3
"""A lease is renewed when this part of it is over, so that there is time for a second try and a third."""


class Lease:
    """A lease as its holder sees it; all in seconds of one local clock, lengths in milliseconds.

    Args:
        asked_s: When the question that was granted was sent.
        answered_s: When its answer came.
        granted_at: The server's time of the grant, milliseconds since the epoch.
        expires_at: The server's time of the end, milliseconds since the epoch.
    """

    __slots__ = ("_answered_s", "_granted_at", "_renew_s", "deadline_s", "length_ms")

    def __init__(self, asked_s: float, answered_s: float, granted_at: int, expires_at: int) -> None:
        self.length_ms = max(1, expires_at - granted_at)
        self._answered_s = answered_s
        self._granted_at = granted_at
        self._trust(asked_s, asked_s + self.length_ms / 1000)

    def renewed(self, asked_s: float, expires_at: int) -> None:
        """The question to extend, sent at ``asked_s``, was granted until ``expires_at`` (the server's time)."""
        full_s = asked_s + self.length_ms / 1000
        # A namespace bounds how long one attempt may be carried; what it cut off is only seen in the answer.
        cut_s = self._answered_s + (expires_at - self._granted_at) / 1000
        self._trust(asked_s, min(full_s, cut_s))

    def _trust(self, asked_s: float, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._renew_s = asked_s + (deadline_s - asked_s) / RENEWALS

    def is_old(self, now_s: float) -> bool:
        """Whether the answer was so long in coming that the lease had better be renewed before it is used."""
        return now_s >= self._renew_s

    def is_over(self, now_s: float) -> bool:
        """Whether the server may have stopped trusting the holder."""
        return now_s >= self.deadline_s

    @property
    def renew_s(self) -> float:
        """When to renew."""
        return self._renew_s

    def retry_s(self, now_s: float) -> float:
        """When to try again after a renewal that did not get through."""
        return min(self.deadline_s, now_s + self.length_ms / 1000 / RENEWALS / RENEWALS)
