"""Keeps one lease: renews it in the background, and knows by the holder's own clock when it is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from idemactor.client.clock import LeaseClock
from idemactor.client.endings import Claim
from idemactor.client.errors import IdemactorClientError, OutOfService
from idemactor.client.flight import Flight
from idemactor.client.lease import Lease
from idemactor.client.params import members
from idemactor.client.results import Extended, Reserved, result_of

RAN_OUT: Final = "the lease ran out before it could be renewed"

Ask = Callable[[Flight, int], Awaitable[Any]]
"""One call, and how long to go on with it, milliseconds."""


class Keeper:
    """The keeper of one lease.

    Args:
        claim: Whose lease it is.
        granted: The grant.
        asked_s: When it was asked for, by ``clock``.
        clock: The holder's.
        ask: Makes calls.
        on_lost: Called once, when the lease is lost.

    Attributes:
        lost: Set then.
        why: Why it is lost.
    """

    def __init__(
        self,
        claim: Claim,
        granted: Reserved,
        asked_s: float,
        clock: LeaseClock,
        ask: Ask,
        on_lost: Callable[[], None],
    ) -> None:
        self.lost = anyio.Event()
        self.why = ""
        self._claim = claim
        self._clock = clock
        self._ask = ask
        self._on_lost = on_lost
        self._running = anyio.CancelScope()
        self._lease = Lease(asked_s, clock.now_s(), granted.reserved_at, granted.lease_expires_at)

    def is_lost(self) -> bool:
        """Whether the lease is lost, looking at the clock too."""
        if self._lease.is_over(self._clock.now_s()):
            self._lose(RAN_OUT)
        return self.lost.is_set()

    async def freshen(self, budget_ms: int) -> None:
        """Renew a lease at once whose grant was so long in coming that nobody here knows when it began."""
        if self._lease.is_old(self._clock.now_s()):
            await self._renew(budget_ms)

    async def run(self) -> None:
        """Renew the lease until it is lost, or until ``stop``."""
        try:
            with self._running:
                await self._run()
        except Exception:
            self._lose("its keeper failed")
            raise

    async def _run(self) -> None:
        next_s = self._lease.renew_s
        while True:
            await self._clock.sleep_until(next_s)
            if self.is_lost():
                return
            now_s = self._clock.now_s()
            renewed = await self._renew(max(1, int((self._lease.deadline_s - now_s) * 1000)))
            if self.lost.is_set():
                return
            next_s = self._lease.renew_s if renewed else self._lease.retry_s(self._clock.now_s())

    def stop(self) -> None:
        """The lease is no longer needed."""
        self._running.cancel()

    async def _renew(self, budget_ms: int) -> bool:
        """Try to renew once; False where the server could not be asked, or would not."""
        asked_s = self._clock.now_s()
        claim = self._claim
        given = members(namespace=claim.namespace, key=claim.key, token=claim.token, lease_ms=self._lease.length_ms)
        try:
            answer = result_of("extend", await self._ask(Flight("extend", given), budget_ms))
        except OutOfService:
            return False
        except IdemactorClientError as error:
            self._lose(f"the server would not extend the lease: {error}")
            return False
        assert isinstance(answer, Extended)
        self._lease.renewed(asked_s, answer.lease_expires_at)
        return True

    def _lose(self, why: str) -> None:
        if not self.lost.is_set():
            self.why = why
            self.lost.set()
            self._on_lost()
