"""Holding a key, and doing a function once: what a client adds to the bare commands."""

from __future__ import annotations

import abc
import functools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast

import anyio

from idemactor.client.checks import (
    check_choice,
    check_duration,
    check_place,
    check_text,
    check_whole,
    exceptions_from,
    on_unavailable_from,
    wait_ms_from,
)
from idemactor.client.clock import LeaseClock
from idemactor.client.commands import Commands
from idemactor.client.endings import Claim, Ending
from idemactor.client.entering import HoldOptions
from idemactor.client.errors import IdemactorClientError
from idemactor.client.flight import Flight
from idemactor.client.hold import Hold
from idemactor.client.keeper import Renewals
from idemactor.client.once import HELD, HoldArguments, Once, check_function, from_json, to_json
from idemactor.client.results import NamespacePolicy, policy_of
from idemactor.client.settlement import Settlement
from idemactor.core.ids import ENTROPY_BITS, uuid7
from idemactor.core.policy import OnUnavailable

P = ParamSpec("P")
R = TypeVar("R")

POLICY_MS: Final = 60_000
"""How old a policy may be before it is fetched again, when it is asked for."""


_log = logging.getLogger("idemactor.client")


class AsyncDecorator(Protocol):
    """Takes an async function and gives one with the same signature."""

    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Callable[P, Coroutine[Any, Any, R]]:
        """The function that is done once."""


class Holding(Commands):
    """Holds of one client; what carries their calls, and what runs in the background, is the subclass's.

    Attributes:
        unprotected: How many holds went on although nobody could be asked.
        lease_clock: By which holders trust their leases.
    """

    unprotected: int
    lease_clock: LeaseClock
    _timeout_ms: int
    _cleanup_ms: int
    _fetched_at: dict[str, float]
    _on_unavailable: OnUnavailable | None = None
    _unavailable_after_ms: int | None = None
    _renewals: Renewals | None = None

    @abc.abstractmethod
    def check(self) -> None:
        """Raise where no calls can be made: ClientClosed, ForkedError."""

    @abc.abstractmethod
    def ask(self, flight: Flight, budget_ms: int | None) -> Awaitable[Any]:
        """One call, as ``Caller.ask``."""

    @abc.abstractmethod
    def start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` in the background until it ends or the client closes."""

    def hold(
        self,
        namespace: str,
        key: str,
        *,
        payload: object = None,
        payload_json: str | None = None,
        fingerprint: str | None = None,
        lease_ms: int | None = None,
        ttl_ms: int | None = None,
        window_ms: int | None = None,
        wait: bool | int = False,
        not_executed: type[BaseException] | Sequence[type[BaseException]] = (),
        on_lost: Literal["cancel", "tell"] = "cancel",
        on_unavailable: Literal["closed", "open"] | None = None,
        unavailable_after_ms: int | None = None,
        on_duplicate: Literal["replay", "reject"] | None = None,
        holder: str | None = None,
        timeout_ms: int | None = None,
    ) -> Hold:
        """Hold ``key`` while the body of an ``async with`` runs; see ``hold.py`` for what becomes of it.

        Args:
            namespace: Where the key lives.
            key: What must not happen twice.
            payload: What the key stands for: a key used with another payload is refused.
            payload_json: The same as JSON text, its decimals exact.
            fingerprint: The caller's own digest of it.
            lease_ms: How long the server trusts the holder after a sign of life; renewed at a third of it.
            ttl_ms: How long the committed key blocks; None: the namespace's setting.
            window_ms: How long it blocks from the first sighting on.
            wait: Whether to wait while somebody else holds the key; a number: at most so many milliseconds.
            not_executed: Exceptions that prove, also after ``begin_effect``, that the effect did not happen.
            on_lost: ``"cancel"`` the body when the lease is lost, or only ``"tell"`` it by ``hold.lost``.
            on_unavailable: ``"open"``: go on unprotected when nobody can be asked; None: see ``Client``.
            unavailable_after_ms: How long to try before that; None: see ``Client``.
            on_duplicate: ``"reject"``: raise ``DuplicateError`` if it was done before; None: the namespace's setting.
            holder: Who asks; None: see ``Client``.
            timeout_ms: How long to try to reserve, and to commit; None: see ``Client``.

        Raises:
            TypeError: At the call: an argument is of the wrong type.
            ValueError: At the call: an argument is none that there is.
            InvalidRequest: At the call: no record can have this namespace or key, or the server would refuse another
                member.
            InFlightError: On entering: somebody else holds the key.
            InDoubtError: On entering: nobody knows what became of an earlier attempt.
            MismatchError: On entering: the key stands for another payload.
            OutOfService: On entering: nobody could be asked.
            LeaseLost: On leaving: another attempt may be at work.
            EndingUnacknowledged: On leaving: the body is through, and nobody knows whether the server knows how it
                ended; its kind ``CommitUnacknowledged`` where it was to be committed.
            StaleTokenError: On leaving: the body is through, but somebody took over meanwhile (now an incident).
            UnknownKeyError: On leaving: the body is through, but the server lost or forgot the key.
        """
        check_place(namespace, key)
        for name, value in (("lease_ms", lease_ms), ("ttl_ms", ttl_ms), ("window_ms", window_ms)):
            if value is not None:
                check_whole(name, value, least=None)
        if holder is not None:
            check_text("holder", holder)
        options = self._hold_options(wait, not_executed, on_lost, on_unavailable, unavailable_after_ms, timeout_ms)
        asked = self._acquisition(
            "reserve",
            namespace=namespace,
            key=key,
            payload=payload,
            payload_json=payload_json,
            fingerprint=fingerprint,
            lease_ms=lease_ms,
            ttl_ms=ttl_ms,
            window_ms=window_ms,
            holder=holder or self._holder,
            on_duplicate=on_duplicate,
        )
        return Hold(self, asked, options)

    def _hold_options(
        self,
        wait: bool | int,
        not_executed: type[BaseException] | Sequence[type[BaseException]],
        on_lost: Literal["cancel", "tell"],
        on_unavailable: Literal["closed", "open"] | None,
        unavailable_after_ms: int | None,
        timeout_ms: int | None,
    ) -> HoldOptions:
        """How a hold behaves, all of it looked at: a wrong one must not show when the body is through."""
        check_choice("on_lost", on_lost, ("cancel", "tell"))
        if unavailable_after_ms is not None:
            check_whole("unavailable_after_ms", unavailable_after_ms)
        if timeout_ms is not None:
            check_duration("timeout_ms", timeout_ms)
        return HoldOptions(
            wait_ms=wait_ms_from(wait),
            not_executed=exceptions_from("not_executed", not_executed),
            on_lost=on_lost,
            on_unavailable=on_unavailable_from(on_unavailable) or self._on_unavailable,
            unavailable_after_ms=self._unavailable_after_ms if unavailable_after_ms is None else unavailable_after_ms,
            timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms,
        )

    def once(
        self,
        namespace: str,
        *,
        key: Callable[..., str] | None = None,
        encode: Callable[[Any], bytes] = to_json,
        decode: Callable[[bytes], Any] = from_json,
        **hold: Unpack[HoldArguments],
    ) -> AsyncDecorator:
        """Make an async function run once for each key, and return what it returned then to every repeat.

        The function counts as an effect from its first line: an exception that is not of ``not_executed`` leaves the
        key in doubt. ``current_hold()`` gives it its hold. A call while another one runs raises ``InFlightError``, or
        waits for its outcome with ``wait``.

        Args:
            namespace: Where the keys live.
            key: Makes the key from the arguments; None: a digest of the function's name and its arguments, which are
                JSON values or bytes then.
            encode: Makes bytes of what is returned, to be kept; JSON unless said otherwise.
            decode: The reverse of ``encode``.
            hold: What else ``hold`` takes.

        Raises:
            TypeError: At the decoration: it is no async function, or one that yields.
        """

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            check_function(function, is_async=True)
            plan = Once(function, key, encode, decode)

            @functools.wraps(function)
            async def call(*arguments: P.args, **named: P.kwargs) -> R:
                async with self.hold(namespace, plan.key_of(arguments, named), **hold) as held:
                    if held.completed:
                        return cast("R", plan.repeat(held.outcome))
                    held.begin_effect()
                    mark = HELD.set(held)
                    try:
                        result = await function(*arguments, **named)
                    finally:
                        HELD.reset(mark)
                    plan.keep(held, result)
                return result

            return call

        return decorate

    # ------------------------------------------------------------------------------------------------ for holds to use

    def known_policy(self, namespace: str) -> NamespacePolicy | None:
        """The policy of a namespace that was fetched last; an old one, or none, is fetched behind the caller's back."""
        now = anyio.current_time()
        fetched_at = self._fetched_at.get(namespace)
        if fetched_at is None or now - fetched_at > POLICY_MS / 1000:
            self._fetched_at[namespace] = now

            async def fetch() -> None:
                try:
                    answer = await self.ask(Flight("policy", {"namespace": namespace}), None)
                    self._policies[namespace] = policy_of(answer)
                except IdemactorClientError as error:
                    _log.debug("the policy of %s could not be fetched: %s", namespace, error)
                self._fetched_at[namespace] = anyio.current_time()

            self.start_task(fetch)
        return self._policies.get(namespace)

    def count_unprotected(self) -> str:
        """One more goes on without protection; returns an operation_id for it."""
        self.unprotected += 1
        entropy = int.from_bytes(os.urandom(-(-ENTROPY_BITS // 8))) >> (-ENTROPY_BITS % 8)
        return uuid7(time.time_ns() // 1_000_000, entropy)

    def renewals(self) -> Renewals:
        """What wakes the keepers of leases."""
        if self._renewals is None or not self._renewals.running or self._renewals.clock is not self.lease_clock:
            self._renewals = Renewals(self.lease_clock, self.start_task)
        return self._renewals

    async def end_here(self, claim: Claim, ending: Ending, budget_ms: int) -> Settlement:
        """End an attempt, see ``Settler.end_here``."""
        return await self._settling().end_here(claim, ending, budget_ms, self._cleanup_ms)

    async def wait_shortly(self, settlement: Settlement) -> None:
        """Wait for what has to be told, whatever is cancelled around, but not for long."""
        await settlement.wait_shortly(self._cleanup_ms)
