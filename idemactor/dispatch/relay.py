"""The relay of one namespace: takes what is due and delivers it, a bounded number at once.

It keeps nothing that a restart would miss. What it claims is leased for longer than a request may take, and a request
never outlives its lease: so whatever becomes of the relay, an entry is delivered again, or in doubt, and never twice
at a time.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import trio

from idemactor.core.delivery import RELAY
from idemactor.core.queries import TakenIntent
from idemactor.dispatch import limits
from idemactor.dispatch.breaker import Breaker, BreakerState
from idemactor.dispatch.destination import Destination
from idemactor.dispatch.exchange import Answer, CutOff, attempt_of, delivery_of, exchange
from idemactor.dispatch.judging import Arrived, Moment, Result, health_after, settled
from idemactor.dispatch.settling import settle
from idemactor.dispatch.shards import Bell, Shards, given_back
from idemactor.dispatch.signing import Signer
from idemactor.dispatch.taking import Taker, query_of
from idemactor.gateway.proxy.call import Lost, NotSent, Outgoing, Unsendable
from idemactor.gateway.proxy.headers import without
from idemactor.gateway.proxy.upstream import Upstream
from idemactor.observability.logs import log_event
from idemactor.observability.observer import Observer
from idemactor.server.tracing import TRACE_FIELDS, Tracing

LAST_WORDS_MS: Final = 1_000
"""How long a relay that is cut off may take to tell what it knows."""
_MS_PER_S: Final = 1_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What relays and reconcilers are given.

    Attributes:
        shards: The shards.
        bell: Rings when something may be due.
        observer: Who is told.
        now_ms: The shards' clock, milliseconds since the epoch.
        chance: Random numbers, from 0 up to 1.
        tracing: Follows deliveries on their way; None: nobody does.
    """

    shards: Shards
    bell: Bell
    observer: Observer
    now_ms: Callable[[], int]
    chance: Callable[[], float]
    tracing: Tracing | None = None


class Relay:
    """Delivers the intents of one namespace.

    Args:
        namespace: Its name.
        destination: Where they go.
        upstream: The connections to that.
        around: Everything else.
    """

    def __init__(self, namespace: str, destination: Destination, upstream: Upstream, around: Surroundings) -> None:
        self._namespace = namespace
        self._destination = destination
        self._upstream = upstream
        self._around = around
        self._signer = Signer(destination.secrets)
        # What a relay of another name has in hand is nobody's any more: a shard lets it lapse when this one comes.
        query = query_of(namespace, destination.lease_ms, f"{RELAY} {uuid.uuid4()}")
        self._taker = Taker(around.shards, query, self, around.now_ms)
        self._breaker = Breaker()
        self._scopes: set[trio.CancelScope] = set()
        self._in_flight = 0
        self._deliveries: trio.Nursery | None = None
        self._draining = False

    @property
    def breaker(self) -> Breaker:
        """How the destination stands."""
        return self._breaker

    def drain(self, within_ms: float = limits.DRAIN_MS) -> None:
        """Take nothing new; ``run`` returns once what is under way has ended, and that is cut off after ``within_ms``.

        What became of it is told afterwards: the shards have to go on for a little longer.
        """
        self._draining = True
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, trio.current_time() + within_ms / _MS_PER_S)
        self._taker.close()

    async def run(self) -> None:
        """Deliver until ``drain``."""
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._hear)
            helpers.start_soon(self._upstream.tidy)
            async with trio.open_nursery() as self._deliveries:
                await self._taker.run()
            helpers.cancel_scope.cancel()
        await self._upstream.aclose()

    async def _hear(self) -> None:
        """A bell that is silent for long is no reason not to look."""
        while True:
            await self._around.bell.wait(self._namespace, limits.SCAN_MS / _MS_PER_S)
            self._taker.rung()

    # ------------------------------------------------------------------------------------------- what the taker asks

    def room(self, reserved: int) -> int:
        """How many more may begin now."""
        if self._draining:
            return 0
        under_way = self._in_flight + reserved
        return self._breaker.room(self._destination.concurrency, under_way, self._around.now_ms())

    def room_at(self) -> float:
        """When the pause of a destination that is down is over."""
        is_waiting = self._breaker.state is BreakerState.OPEN and self._breaker.until > self._around.now_ms()
        return self._breaker.until if is_waiting else math.inf

    def begin(self, taken: TakenIntent) -> None:
        """Deliver it, or give it back."""
        assert self._deliveries is not None
        self._in_flight += 1
        self._around.observer.deliveries_in_flight(self._namespace, self._in_flight)
        self._deliveries.start_soon(self._deliver, taken)

    # --------------------------------------------------------------------------------------------------- one delivery

    async def _deliver(self, taken: TakenIntent) -> None:
        try:
            await self._attempt(taken)
        except Exception as error:  # What breaks here must not end the relay; the lease lapses, which is safe.
            log_event(_log, logging.ERROR, "delivery_broke", error, namespace=self._namespace)
            self._stands(self._breaker.given_up(taken, self._around.now_ms()))
        finally:
            self._in_flight -= 1
            self._around.observer.deliveries_in_flight(self._namespace, self._in_flight)
            self._taker.wake()

    async def _attempt(self, taken: TakenIntent) -> None:
        reason = self._unbegun(taken)
        if reason is not None:
            await self._give_back(taken, reason)
            return
        try:
            arrived = await self._send(taken)
        except trio.Cancelled:
            with trio.move_on_after(LAST_WORDS_MS / _MS_PER_S, shield=True):
                await self._end(taken, Lost("the relay was cut off"))
            raise
        await self._end(taken, arrived)

    def _unbegun(self, taken: TakenIntent) -> str | None:
        """Why nothing can be sent; None: it has begun."""
        now = self._around.now_ms()
        if self._draining:
            return "the server stops"
        if now >= taken.deliver_until:
            return "its time is over"
        if taken.lease_expires_at - now < self._destination.timeout_ms + limits.SETTLE_MS_MIN:
            return "what is left of its lease is too short for a request"
        begun = self._breaker.begun(taken, now)
        if begun is None:
            return "the destination is down"
        self._stands(begun)
        return None

    async def _send(self, taken: TakenIntent) -> Arrived:
        scope = trio.CancelScope()
        self._scopes.add(scope)
        try:
            outgoing = self._made(taken)
            if self._around.tracing is None:
                return await self._exchanged(outgoing, scope)
            return await self._followed(self._around.tracing, taken, outgoing, scope)
        except (NotSent, Lost) as error:
            return error
        finally:
            self._scopes.discard(scope)

    async def _exchanged(self, outgoing: Outgoing, scope: trio.CancelScope) -> Answer:
        return await exchange(self._upstream, outgoing, scope, self._destination.timeout_ms)

    async def _followed(
        self, tracing: Tracing, taken: TakenIntent, outgoing: Outgoing, scope: trio.CancelScope
    ) -> Answer:
        """The same, as a span; the destination is told where the trace stands."""
        sent = tracing.delivery(attempt_of(self._namespace, taken, self._destination.endpoint.origin, outgoing))
        headers = (*without(outgoing.headers, *TRACE_FIELDS), *sent.fields())
        try:
            answer = await self._exchanged(replace(outgoing, headers=headers), scope)
        except BaseException as error:
            sent.ended(None, type(error).__name__)
            raise
        sent.ended(answer.status)
        return answer

    def _made(self, taken: TakenIntent) -> Outgoing:
        authority, now = self._upstream.authority, self._around.now_ms()
        try:
            return delivery_of(taken, self._destination, self._signer, authority, now)
        except Exception as error:  # Whatever broke, nothing was sent.
            log_event(_log, logging.ERROR, "delivery_request_broke", error, namespace=self._namespace)
            raise Unsendable("the request could not be made") from error

    async def _end(self, taken: TakenIntent, arrived: Arrived) -> None:
        moment = Moment(self._around.now_ms(), self._around.chance())
        self._stands(health_after(self._breaker, taken, arrived, self._destination, moment))
        result, ending = settled(taken, arrived, self._destination, self._breaker, moment)
        self._around.observer.delivered(self._namespace, result.value)
        if not isinstance(arrived, Answer | CutOff):
            log_event(_log, logging.INFO, "delivery_failed", namespace=self._namespace, what=str(arrived))
        await settle(self._around.shards, ending, taken.lease_expires_at, self._around.now_ms)

    async def _give_back(self, taken: TakenIntent, reason: str) -> None:
        self._around.observer.delivered(self._namespace, Result.GIVEN_BACK.value)
        ending = given_back(taken, reason)
        with trio.move_on_after(LAST_WORDS_MS / _MS_PER_S, shield=True):
            await settle(self._around.shards, ending, taken.lease_expires_at, self._around.now_ms)

    def _stands(self, breaker: Breaker) -> None:
        if breaker.state is not self._breaker.state:
            self._around.observer.breaker_changed(self._namespace, breaker.state.value)
        self._breaker = breaker
