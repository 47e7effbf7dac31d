"""Keeps one lease: renews it in the background, and knows by the holder's own clock when it is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from idemactor.client.alarms import Alarm, Alarms
from idemactor.client.clock import LeaseClock
from idemactor.client.endings import Claim
from idemactor.client.errors import IdemactorClientError, OutOfService
from idemactor.client.flight import Flight
from idemactor.client.lease import Lease
from idemactor.client.params import members
from idemactor.client.results import Extended, Reserved, result_of

RAN_OUT: Final = "the lease ran out before it could be renewed"
FAILED: Final = "its keeper failed"

Ask = Callable[[Flight, int], Awaitable[Any]]
"""One call, and how long to go on with it, milliseconds."""


class Renewals:
    """Wakes keepers when their leases are to be renewed. Most leases end before, and cost no task.

    Args:
        clock: The holders'.
        start_task: Runs something in the background.

    Attributes:
        running: False once it failed, and with it every keeper it had.
    """

    def __init__(self, clock: LeaseClock, start_task: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self.clock = clock
        self.running = True
        self._start_task = start_task
        self._alarms: Alarms[Keeper] = Alarms(clock, self._renew)
        start_task(self._run)

    def watch(self, keeper: Keeper, when_s: float) -> Alarm[Keeper]:
        """Have ``keeper`` renew at ``when_s``."""
        return self._alarms.set(when_s, keeper)

    def forget(self, alarm: Alarm[Keeper]) -> None:
        """It need not be renewed any more."""
        self._alarms.drop(alarm)

    def _renew(self, keeper: Keeper) -> None:
        self._start_task(keeper.run)

    async def _run(self) -> None:
        try:
            await self._alarms.run()
        except Exception:
            self.running = False
            for keeper in self._alarms.pending():
                keeper.fail()
            raise


class Keeper:
    """The keeper of one lease.

    Args:
        claim: Whose lease it is.
        granted: The grant.
        asked_s: When it was asked for, by the holder's clock.
        renewals: Wakes it.
        ask: Makes calls.
        on_lost: Called once, when the lease is lost.

    Attributes:
        lost: Whether it is.
        why: Why.
    """

    __slots__ = ("_alarm", "_ask", "_claim", "_clock", "_lease", "_on_lost", "_renewals", "_running", "lost", "why")

    def __init__(
        self,
        claim: Claim,
        granted: Reserved,
        asked_s: float,
        renewals: Renewals,
        ask: Ask,
        on_lost: Callable[[], None],
    ) -> None:
        self.lost = False
        self.why = ""
        self._claim = claim
        self._renewals = renewals
        self._clock = renewals.clock
        self._ask = ask
        self._on_lost = on_lost
        self._alarm: Alarm[Keeper] | None = None
        self._running: anyio.CancelScope | None = None
        self._lease = Lease(asked_s, self._clock.now_s(), granted.reserved_at, granted.lease_expires_at)

    def is_lost(self) -> bool:
        """Whether the lease is lost, looking at the clock too."""
        if self._lease.is_over(self._clock.now_s()):
            self._lose(RAN_OUT)
        return self.lost

    async def freshen(self, budget_ms: int) -> None:
        """Renew a lease at once whose grant was so long in coming that nobody here knows when it began."""
        if self._lease.is_old(self._clock.now_s()):
            await self._renew(budget_ms)

    def start(self) -> None:
        """Renew the lease from here on until it is lost, or until ``stop``."""
        self._alarm = self._renewals.watch(self, self._lease.renew_s)

    def stop(self) -> None:
        """The lease is no longer needed."""
        if self._running is not None:
            self._running.cancel()
        elif self._alarm is not None:
            self._renewals.forget(self._alarm)
            self._alarm = None

    def fail(self) -> None:
        """Nothing will wake it any more."""
        self._lose(FAILED)

    async def run(self) -> None:
        """Renew the lease, which is due, until it is lost, or until ``stop``."""
        if self._alarm is None:
            return
        try:
            with anyio.CancelScope() as self._running:
                await self._run()
        except Exception:
            self.fail()
            raise

    async def _run(self) -> None:
        next_s = self._lease.renew_s
        while True:
            await self._clock.sleep_until(next_s)
            if self.is_lost():
                return
            now_s = self._clock.now_s()
            renewed = await self._renew(max(1, int((self._lease.deadline_s - now_s) * 1000)))
            if self.lost:
                return
            next_s = self._lease.renew_s if renewed else self._lease.retry_s(self._clock.now_s())

    async def _renew(self, budget_ms: int) -> bool:
        """Try to renew once; False where the server could not be asked, or would not."""
        asked_s = self._clock.now_s()
        claim = self._claim
        given = members(namespace=claim.namespace, key=claim.key, token=claim.token, lease_ms=self._lease.length_ms)
        try:
            answer = result_of("extend", await self._ask(Flight("extend", given, own=True), budget_ms))
        except OutOfService:
            return False
        except IdemactorClientError as error:
            self._lose(f"the server would not extend the lease: {error}")
            return False
        assert isinstance(answer, Extended)
        self._lease.renewed(asked_s, answer.lease_expires_at)
        return True

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.why = why
            self.lost = True
            self._on_lost()
