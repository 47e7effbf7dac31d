"""What has come of request bodies that are not whole yet: counted for all doors of a process together, and bounded.

Who sends a body slowly, or never to its end, has it kept for as long as a deadline allows, and with many connections
that is as much memory as there is. So a body has to find room among those of all others; where there is none its
request is refused, from the announced length if there is one, and else as soon as it outgrows the room. What counts is
what came, not what was announced: to take the room away from others a client has to send that much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from idemactor.errors import Code, RequestError
from idemactor.shard.mailbox import OVERLOADED_RETRY_MS

ARRIVING_BYTES_ALL: Final = 256 * 1024 * 1024
"""The most that may be kept of unfinished request bodies, and frames, of all clients of the process together, bytes."""

SMALL_BODY_BYTES: Final = 4_096
"""A body, or a frame, of this size does not count: it takes no more than what is known of its connection anyway."""


STRANGERS_SHARE: Final = 2
"""What part of the room strangers find: so they leave as much to whoever has shown a token, however many they are."""


def _nobody(_requests: int) -> None:
    """Is told nothing."""


@dataclass(slots=True)
class Arrivals:
    """The bodies in arrival at all doors of a process.

    Attributes:
        held_bytes: How much has come of them.
        bytes_max: How much may; a body that would be beyond it is refused.
        on_refused: Told how many there was no room for. It must neither block nor raise.
    """

    held_bytes: int = 0
    bytes_max: int = ARRIVING_BYTES_ALL
    on_refused: Callable[[int], None] = _nobody

    def begin(self) -> Arrival:
        """A place for one body after the other, as a connection brings them."""
        return Arrival(self)


class Arrival:
    """What has come of the body that a connection brings. As a context manager it gives its room back in the end.

    Attributes:
        held_bytes: What of it counts among those of all.
    """

    __slots__ = ("_all", "held_bytes")

    def __init__(self, arrivals: Arrivals) -> None:
        self.held_bytes = 0
        self._all = arrivals

    def holds(self, size: int, announced: int = 0, *, known: bool = True) -> None:
        """So much of it has come.

        Args:
            size: All that is kept of it, bytes.
            announced: How large it will be, as its sender says, bytes; 0: nobody says.
            known: Whether its sender has said who that is, where it has to.

        Raises:
            RequestError: OVERLOADED: there is no room. Nothing of it counts any more: it is to be thrown away.
        """
        self.done()
        most = max(size, announced)
        if most <= SMALL_BODY_BYTES:
            return
        if self._all.held_bytes + most > (self._all.bytes_max if known else self._all.bytes_max // STRANGERS_SHARE):
            self._all.on_refused(1)
            raise _overloaded()
        self.held_bytes = size
        self._all.held_bytes += size

    def done(self) -> None:
        """It is whole, or nothing of it is kept."""
        self._all.held_bytes -= self.held_bytes
        self.held_bytes = 0

    def __enter__(self) -> Arrival:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done()


def _overloaded() -> RequestError:
    """What is told where there is no room."""
    return RequestError(
        Code.OVERLOADED,
        "the bodies of too many requests are on their way; none of this one was taken",
        retry_after_ms=OVERLOADED_RETRY_MS,
    )
