"""One request to an upstream and its answer to the client; protected or not.

What arrives whole is held back until the caller says so: that is how an attempt is committed before the client sees the
end of its answer. An answer whose length is known and small is held back altogether; of any other what comes is passed
on as it comes, all but its end.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from idemactor.gateway.proxy.call import AnswerHead, Call, Lost, NotSent, Outgoing
from idemactor.gateway.proxy.client_side import ClientAnswer
from idemactor.gateway.proxy.cut import Cut
from idemactor.gateway.proxy.desk import Lease
from idemactor.gateway.proxy.headers import Pairs, without
from idemactor.gateway.proxy.routes import Route
from idemactor.gateway.proxy.upstream import Upstream
from idemactor.observability.logs import log_event
from idemactor.server.tracing import TRACE_FIELDS, path_of

HELD_BYTES_MAX: Final = 65_536
"""An answer of at most this known length is sent to the client when all of it is here."""

CLIENT_MS_MIN: Final = 100
"""What a client has at least to take a piece of an answer, however soon the lease ends."""

_MS_PER_S: Final = 1_000
_STOPPED: Final = "the server stopped before the upstream was reached"
_log = logging.getLogger(__name__)


class TimedOut(Lost):
    """The upstream took too long after something may have been sent."""


@dataclass(slots=True)
class Kept:
    """The body of an answer as far as it may have to be looked at, or stored.

    Attributes:
        body: All of it; None: it is larger than ``max_bytes``.
    """

    max_bytes: int
    body: bytearray | None = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """The next part."""
        if self.body is not None:
            self.body += data
            if len(self.body) > self.max_bytes:
                self.body = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """A whole answer.

    Attributes:
        head: Its status and fields.
        body: Its body; None: it is larger than was to be kept.
        last: The part of its body that the client has not been sent yet.
        marks: Fields that are added to it.
    """

    head: AnswerHead
    body: bytes | None
    last: bytes
    marks: Pairs = ()

    async def hand_over(self, client: ClientAnswer) -> None:
        """Send the client what it has not been sent yet."""
        if not client.began:
            client.begin(self.head, *self.marks)
        await client.finish(self.last)


@dataclass(frozen=True, slots=True)
class Forwarder:
    """Sends requests on.

    Attributes:
        upstream: Where to.
        route: For its times.
        nursery: Where the rest of a large request is sent from.
        cut: When upstreams are given up.
    """

    upstream: Upstream
    route: Route
    nursery: trio.Nursery
    cut: Cut

    async def forward(
        self,
        outgoing: Outgoing,
        client: ClientAnswer,
        keep_bytes: int,
        marks: Pairs = (),
        *,
        lease: Lease | None = None,
        fresh: bool = False,
    ) -> Arrived:
        """Send a request and read its answer to the end, passing on what comes before the end.

        Args:
            keep_bytes: The largest body to keep.
            marks: Fields that are added to the answer.
            lease: Without it nothing is sent; None: nothing protects the request.
            fresh: Whether no used connection will do.

        Raises:
            NotSent: Nothing reached the upstream.
            Lost: Something may have, and no whole answer came.
        """
        if client.traced is None:
            return await self._in_time(outgoing, client, keep_bytes, marks, lease, fresh=fresh)
        origin = self.upstream.origin
        path = path_of(outgoing.target)
        sent = client.traced.upstream(
            outgoing.method, f"{origin.scheme}://{origin.authority}", origin.host or origin.unix, origin.port, path
        )
        kept = without(outgoing.headers, *TRACE_FIELDS)
        try:
            outgoing = replace(outgoing, headers=(*kept, *sent.fields()))
            arrived = await self._in_time(outgoing, client, keep_bytes, marks, lease, fresh=fresh)
        except BaseException as error:
            sent.ended(None, type(error).__name__)
            raise
        sent.ended(arrived.head.status)
        return arrived

    async def _in_time(
        self,
        outgoing: Outgoing,
        client: ClientAnswer,
        keep_bytes: int,
        marks: Pairs,
        lease: Lease | None,
        *,
        fresh: bool,
    ) -> Arrived:
        """The same, until everything is cut off: what was sent by then is lost as if the upstream had been too slow."""
        under_way = _UnderWay(outgoing, client, Kept(keep_bytes), marks, lease, self.cut.begin())
        try:
            with under_way.scope:
                await self._forward(under_way, fresh=fresh)
        finally:
            self.cut.ended(under_way.scope)
        # An answer that is whole is no less so where only its connection's end was cut off.
        if under_way.arrived is not None:
            return under_way.arrived
        if under_way.sent:
            raise TimedOut("the server stopped before the upstream had answered")
        raise NotSent(_STOPPED)

    async def _forward(self, under_way: _UnderWay, *, fresh: bool) -> None:
        outgoing, lease = under_way.outgoing, under_way.lease
        # Connecting has its own deadline: who runs out of time below has run out of it after something was sent.
        async with self.upstream.call(outgoing, connect_ms=self.route.connect_ms, fresh=fresh) as call:
            # Waiting for a place and a connection may have taken longer than a lease can be held.
            if lease is not None and not lease.is_held:
                raise NotSent("the lease ended before the upstream was reached")
            # A connection that is there, and a request that fits into its buffer, were not waited for.
            if under_way.scope.cancel_called:
                raise NotSent(_STOPPED)
            under_way.sent = True
            try:
                under_way.arrived = await self._exchange(call, under_way)
            except (Lost, trio.Cancelled):
                raise
            except Exception as error:  # Whatever broke, something may have been sent.
                log_event(_log, logging.ERROR, "gateway_exchange_broke", error)
                raise Lost("the exchange with the upstream broke") from error

    async def _exchange(self, call: Call, under_way: _UnderWay) -> Arrived:
        client, lease = under_way.client, under_way.lease
        lasts_until = math.inf if lease is None else lease.lasts_until
        with _deadline(self.route.timeout_ms) as whole:
            with _deadline(min(self.route.first_byte_ms, self.route.timeout_ms)) as first:
                await call.send(self.nursery)
                head = await call.head(client.inform)
            if not first.cancelled_caught:
                return await _read(call, head, client, under_way.kept, _Clock(whole, lasts_until), under_way.marks)
        raise TimedOut("the upstream did not answer in time")


@dataclass(slots=True)
class _UnderWay:
    """One request on its way.

    Attributes:
        outgoing: The request.
        client: Where its answer goes.
        kept: Of the answer's body.
        marks: Fields that are added to the answer.
        lease: Without it nothing is sent; None: nothing protects the request.
        scope: When it is cut off.
        sent: Whether something may have been sent.
        arrived: The answer, once it is whole.
    """

    outgoing: Outgoing
    client: ClientAnswer
    kept: Kept
    marks: Pairs
    lease: Lease | None
    scope: trio.CancelScope
    sent: bool = False
    arrived: Arrived | None = None


@dataclass(frozen=True, slots=True)
class _Clock:
    """The upstream's time, which stands still while a client reads; but a lease does not wait for clients.

    Attributes:
        whole: The time that the upstream has.
        lasts_until: When everything has to be over, on trio's clock.
    """

    whole: trio.CancelScope
    lasts_until: float

    @contextlib.contextmanager
    def paused(self) -> Iterator[trio.CancelScope]:
        """Cancels its body where the upstream would lose time by waiting longer."""
        began = trio.current_time()
        left_s = self.whole.deadline - began
        self.whole.deadline = math.inf
        patience = trio.move_on_at(max(self.lasts_until - left_s, began + CLIENT_MS_MIN / _MS_PER_S))
        try:
            with patience:
                yield patience
        finally:
            self.whole.deadline = min(trio.current_time() + left_s, self.lasts_until)


async def _read(call: Call, head: AnswerHead, client: ClientAnswer, kept: Kept, clock: _Clock, marks: Pairs) -> Arrived:
    held = bytearray()
    held_max = HELD_BYTES_MAX if head.length is not None and head.length <= HELD_BYTES_MAX else -1
    piece, ended = call.arrived()
    while True:
        kept.add(piece)
        held += piece
        if ended:
            return Arrived(head, None if kept.body is None else bytes(kept.body), bytes(held), marks)
        if len(held) > held_max:
            # The client's slowness is not the upstream's: meanwhile no time of the upstream's passes.
            with clock.paused() as patience:
                if not client.began:
                    client.begin(head, *marks)
                await client.data(bytes(held))
            if patience.cancelled_caught:
                # The answer is read on without the client: that it is committed matters more.
                client.drop()
            held.clear()
        piece, ended = await call.more()


def _deadline(timeout_ms: int) -> trio.CancelScope:
    return trio.move_on_after(timeout_ms / _MS_PER_S)
