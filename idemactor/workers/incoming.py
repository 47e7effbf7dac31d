"""What another worker asks of this one's shards: messages to envelopes, answers to messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, get_args

from idemactor.core.queries import Inspect, Query
from idemactor.core.replies import Overloaded
from idemactor.server.backlog import without_outcomes
from idemactor.server.tracing import Tracing
from idemactor.shard.mailbox import OVERLOADED_RETRY_MS, Answer, Envelope, may_be_left
from idemactor.shard.router import Router
from idemactor.shard.tracing import traced
from idemactor.wire.crossing import answer_data, command_of
from idemactor.workers.messages import STANDING, TOLD, Message, packer

UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of answers that the other worker has not read yet; with more, what it asks is refused as overload,
and outcomes that it asked for before are not sent."""


_ASKED_FIELDS: Final = 4
"""Of a call whose trace does not go along."""
_QUERIES: Final = frozenset(get_args(Query))


class _Waiter:
    """The sink of one call that waits: its caller may leave before the others of that worker."""

    __slots__ = ("_incoming", "left")

    def __init__(self, incoming: Incoming) -> None:
        self.left = False
        self._incoming = incoming

    @property
    def closed(self) -> bool:
        return self.left or self._incoming.closed

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        self._incoming.deliver(answers)


class Incoming:
    """The calls of one connection from another worker, and the ``Sink`` of their commands; the tag is the call's id.

    Args:
        router: This worker's; all that comes is of its own shards.
        route: Where commands go, see ``Router.route``.
        send: Sends bytes back; never blocks.
        unread_bytes: How many of them the other has not read.
        tracing: Goes on with traces that began there; None: nobody follows calls.

    Attributes:
        closed: The connection is gone, and with it everybody who waits behind it.
    """

    def __init__(
        self,
        router: Router,
        route: Callable[[Sequence[Envelope]], None],
        send: Callable[[bytes], None],
        unread_bytes: Callable[[], int],
        tracing: Tracing | None = None,
    ) -> None:
        self.closed = False
        self._router = router
        self._route = route
        self._send = send
        self._unread_bytes = unread_bytes
        self._tracing = tracing
        self._pack = packer()
        self._waiters: dict[int, _Waiter] = {}
        self._taken: list[Envelope] = []

    def asked(self, message: Message) -> None:
        """Take a call; a command goes to its shard with ``hand_over``."""
        call, shard, data = message[1:4]
        command = command_of(data)
        sink: Incoming | _Waiter = self
        if may_be_left(command):
            sink = self._waiters[call] = _Waiter(self)
        envelope = Envelope(command, sink, call)
        if type(command) in _QUERIES:
            self._ask(shard, envelope)
            return
        if len(message) > _ASKED_FIELDS and self._tracing is not None:
            envelope = traced(envelope, self._tracing.crossed(message[_ASKED_FIELDS], command))
        self._taken.append(envelope)

    def hand_over(self) -> None:
        """Send on what was taken since the last time, in order."""
        if not self._taken:
            return
        taken, self._taken = self._taken, []
        if self._unread_bytes() > UNREAD_BYTES_MAX:
            self.deliver([(envelope.tag, Overloaded(OVERLOADED_RETRY_MS)) for envelope in taken])
        else:
            self._route(taken)

    def left(self, call: int) -> None:
        """The caller of one that waits has left; harmless where that was answered meanwhile."""
        waiter = self._waiters.get(call)
        if waiter is not None:
            waiter.left = True

    def deliver(self, answers: Sequence[tuple[object, Answer]]) -> None:
        """Take the answers of one batch of a shard: one write."""
        if self.closed:
            return
        if self._unread_bytes() > UNREAD_BYTES_MAX:
            answers = without_outcomes(list(answers))
        pack, waiters = self._pack, self._waiters
        if waiters:
            for call, _ in answers:
                if isinstance(call, int):
                    waiters.pop(call, None)
        self._send(b"".join([pack((TOLD, call, answer_data(answer))) for call, answer in answers]))

    def _ask(self, number: int, envelope: Envelope) -> None:
        if isinstance(envelope.command, Inspect):
            shard = self._router.shards[number]
            self._send(self._pack((STANDING, number, shard.queue_depth, shard.quarantined, shard.in_memory)))
        self._router.ask(number, envelope)
