"""What the reverse proxy asks of the shards, in the same process: reserving, keeping leases, and telling the end.

None of it lives in a client's connection: a client that leaves changes nothing about what was begun for it.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import trio

from idemactor.core.commands import Command, Commit, Doubt, Extend, Release, Reserve
from idemactor.core.keys import Identity
from idemactor.core.replies import (
    AlreadyCommitted,
    Doubted,
    Extended,
    InDoubt,
    InFlight,
    Overloaded,
    Reserved,
    Stale,
    Unavailable,
    Unknown,
)
from idemactor.gateway.proxy.limits import (
    ANSWER_MS_MIN,
    RENEWAL_MS_MIN,
    RENEWALS_PER_LEASE,
    RETRY_MS,
    RETRY_MS_MAX,
    SETTLE_MS_MAX,
    SETTLING_MAX,
)
from idemactor.observability.logs import log_event
from idemactor.server.sinks import Replies
from idemactor.server.tracing import Request
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.router import Router
from idemactor.shard.tracing import traced

_MS_PER_S: Final = 1_000
_LAPSE_MS: Final = 1
"""The shortest lease: what is left of an attempt whose evidence has to stay."""

_log = logging.getLogger(__name__)

Ending = Commit | Release | Doubt | Extend


@dataclass(slots=True, eq=False)
class Lease:
    """An attempt under way, whose lease is renewed until it is dropped.

    Attributes:
        identity: Whose it is.
        token: The attempt's.
        lease_ms: For how long it is renewed at a time.
        ends_at_ms: When it ends by what a shard said last, milliseconds since the epoch.
        lasts_until: When no renewal carries it further, on trio's clock.
        now_ms: The shards' clock, milliseconds since the epoch.
        renew_at: When it is renewed next, on trio's clock.
    """

    identity: Identity
    token: int
    lease_ms: int
    ends_at_ms: int
    lasts_until: float
    now_ms: Callable[[], int]
    renew_at: float = 0.0

    @property
    def is_held(self) -> bool:
        """Whether nobody else can have been granted the key yet, by what is known here."""
        return self.now_ms() < self.ends_at_ms

    def renewed(self, answer: Answer) -> None:
        """What a shard said to a renewal; where it could not say anything, what was granted before stands."""
        match answer:
            case Extended():
                self.ends_at_ms = answer.lease_expires_at
            case Overloaded() | Unavailable():
                pass
            case _:
                self.ends_at_ms = 0


class LeaseKeeper:
    """Renews the leases of all attempts under way, from one task."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._leases: set[Lease] = set()
        self._changed = trio.Event()
        self._wakes_at = 0.0

    def hold(self, lease: Lease) -> None:
        """Renew ``lease`` from now on."""
        lease.renew_at = trio.current_time() + self._interval_s(lease)
        self._leases.add(lease)
        if lease.renew_at < self._wakes_at:
            self._changed.set()

    def drop(self, lease: Lease) -> None:
        """No more."""
        self._leases.discard(lease)

    async def run(self) -> None:
        """Renew, for ever."""
        while True:
            self._changed = trio.Event()
            self._wakes_at = min((lease.renew_at for lease in self._leases), default=math.inf)
            with trio.move_on_at(self._wakes_at):
                await self._changed.wait()
            self._renew(trio.current_time())

    def _renew(self, now: float) -> None:
        for lease in self._leases:
            if lease.renew_at <= now:
                self._ask(lease)
                lease.renew_at = now + self._interval_s(lease)

    def _ask(self, lease: Lease) -> None:
        """Nobody waits for the answer: it counts for whoever has not sent anything yet."""
        replies = Replies(1, lambda: lease.renewed(replies.answers[0]))
        self._router.route([Envelope(Extend(lease.identity, lease.token, lease.lease_ms), replies, 0)])

    @staticmethod
    def _interval_s(lease: Lease) -> float:
        return max(RENEWAL_MS_MIN, lease.lease_ms / RENEWALS_PER_LEASE) / _MS_PER_S


class Caller:
    """A client that waits for a grant.

    Attributes:
        hung_up: It sends no more; what waits for it is not granted any more.
    """

    def __init__(self) -> None:
        self.hung_up = False
        self._replies: Replies | None = None

    def asks(self, replies: Replies) -> None:
        """It waits for these."""
        self._replies = replies
        replies.closed = self.hung_up

    def hang_up(self) -> None:
        """It sends no more."""
        self.hung_up = True
        if self._replies is not None:
            self._replies.closed = True


class Desk:
    """Asks shards on behalf of requests.

    Args:
        router: Where commands go.
        nursery: What has to be told although nobody waits any more is told from here.

    Attributes:
        closing: The server drains: who is refused now is refused for that, and not because a shard is beyond reach.
    """

    def __init__(self, router: Router, nursery: trio.Nursery) -> None:
        self._router = router
        self._nursery = nursery
        self._settling = 0
        self._tell_until = math.inf
        self.closing = False

    def close(self, tell_until: float) -> None:
        """The server drains; from ``tell_until`` on, on trio's clock, no shard can be told anything any more."""
        self.closing = True
        self._tell_until = tell_until

    async def reserve(
        self,
        command: Reserve,
        patience_ms: int,
        *,
        keep: bool,
        caller: Caller | None = None,
        request: Request | None = None,
    ) -> Answer:
        """Ask to be the holder; a shard that cannot answer is asked again for ``patience_ms``.

        Whoever cancels this is not the holder: what is granted nevertheless is given back.

        Args:
            keep: Whether a grant that comes after ``patience_ms`` stays: whoever went on unprotected tells it the end.
            caller: Who waits, where that can be seen.
            request: What it is traced as a part of.
        """
        assert command.request_id is not None
        gives_up_at = trio.current_time() + patience_ms / _MS_PER_S
        rest_ms = RETRY_MS
        while True:
            # However short the patience is, a shard that is well has the time to answer.
            until = max(gives_up_at, trio.current_time() + ANSWER_MS_MIN / _MS_PER_S)
            answer = await self._ask(
                command, until + command.wait_ms / _MS_PER_S, keep=keep, caller=caller, request=request
            )
            left_s = gives_up_at - trio.current_time()
            gave_up = left_s <= 0 or self.closing or (caller is not None and caller.hung_up)
            if not isinstance(answer, Overloaded | Unavailable) or gave_up:
                return answer
            await trio.sleep(min(rest_ms / _MS_PER_S, left_s))
            rest_ms = min(2 * rest_ms, RETRY_MS_MAX)

    async def settle(self, ending: Ending, patience_ms: int, request: Request | None = None) -> Answer | None:
        """Tell how an attempt ended; None: nobody could be told within ``patience_ms``, and it is tried on.

        A server that drains may leave less than that: whoever waits is to be answered all the same. Whom nobody will
        reach any more is asked once.
        """
        until = min(trio.current_time() + patience_ms / _MS_PER_S, self._tell_until)
        told = await self._tell(ending, until, request)
        if told is None:
            self.later(ending)
        return told

    def later(self, ending: Ending) -> None:
        """Tell it as long as it takes, within ``SETTLE_MS_MAX``."""
        self._start(self._settle_later, ending)

    def report(self, command: Reserve, ending_of: Callable[[int], Ending]) -> None:
        """Tell a shard what was done while it did not answer.

        The reserve is asked again under its first request_id, and what it grants is ended as the request ended: where
        only the first answer was lost, the grant is our own and no double.
        """
        self._start(self._report, command, ending_of)

    # ------------------------------------------------------------------------------------------------------- one answer

    async def look(self, command: Reserve, patience_ms: int) -> Answer:
        """What a caller would be told that does not wait; it is granted nothing."""
        command = replace(command, wait_ms=0, request_id=new_request_id())
        answer = await self.reserve(command, patience_ms, keep=False)
        if not isinstance(answer, Reserved):
            return answer
        self.later(given_back(command.identity, answer))
        return InFlight(answer.attempt, None, answer.reserved_at, answer.lease_expires_at, RETRY_MS_MAX)

    async def _ask(
        self,
        command: Command,
        until: float,
        *,
        keep: bool = True,
        caller: Caller | None = None,
        request: Request | None = None,
    ) -> Answer:
        abandoned = False

        def came() -> None:
            if abandoned and not keep:
                self._give_back(command, replies.answers[0])

        replies = Replies(1, came)
        if caller is not None:
            caller.asks(replies)
        envelope = Envelope(command, replies, 0)
        if request is not None:
            envelope = traced(envelope, request.command(command))
        self._router.route([envelope])
        try:
            with trio.move_on_at(until):
                await replies.wait()
        except trio.Cancelled:
            abandoned, keep = True, False
            if replies.complete:
                came()
            raise
        if replies.complete:
            return replies.answers[0]
        abandoned = True
        return Unavailable(RETRY_MS_MAX)

    def _give_back(self, command: Command, answer: Answer) -> None:
        if isinstance(answer, Reserved) and isinstance(command, Reserve):
            self._router.route([Envelope(given_back(command.identity, answer), Replies(1), 0)])

    async def _tell(self, ending: Ending, until: float, request: Request | None = None) -> Answer | None:
        rest_ms = RETRY_MS
        while True:
            answer = await self._ask(ending, until, request=request)
            if not isinstance(answer, Overloaded | Unavailable):
                _notice(ending, answer)
                return answer
            left_s = until - trio.current_time()
            if left_s <= 0 or self._router.is_gone(ending.identity):
                return None
            await trio.sleep(min(rest_ms / _MS_PER_S, left_s))
            rest_ms = min(2 * rest_ms, RETRY_MS_MAX)

    # ----------------------------------------------------------------------------------------------- when nobody waits

    def _start(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        if self._settling >= SETTLING_MAX:
            log_event(_log, logging.ERROR, "gateway_gave_up_telling", detail="too much waits to be told already")
            return
        self._settling += 1
        self._nursery.start_soon(self._counted, work, *args)

    async def _counted(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        try:
            await work(*args)
        except Exception as error:  # What breaks here must not end the door for everybody.
            log_event(_log, logging.ERROR, "gateway_gave_up_telling", error)
        finally:
            self._settling -= 1

    async def _settle_later(self, ending: Ending) -> None:
        if await self._tell(ending, trio.current_time() + SETTLE_MS_MAX / _MS_PER_S) is None:
            log_event(_log, logging.ERROR, "gateway_gave_up_telling", what=type(ending).__name__.lower())

    async def _report(self, command: Reserve, ending_of: Callable[[int], Ending]) -> None:
        answer = await self.reserve(replace(command, wait_ms=0), SETTLE_MS_MAX, keep=True)
        if isinstance(answer, Reserved):
            await self._settle_later(ending_of(answer.token))
        else:
            # Somebody else may have had the same effect.
            log_event(_log, logging.ERROR, "gateway_possible_double", found=type(answer).__name__.lower())


def given_back(identity: Identity, grant: Reserved, reason: str | None = None) -> Release | Extend:
    """The end of an attempt that surely had no effect.

    Where an earlier attempt may have had one, a release would make the next caller believe that it is the first; so the
    lease is made to end instead, and the next caller takes over and is told.
    """
    if grant.takeover:
        return Extend(identity, grant.token, _LAPSE_MS)
    return Release(identity, grant.token, reason)


def new_request_id() -> str:
    """A name for one acquisition."""
    return uuid.uuid4().hex


def _notice(ending: Ending, answer: Answer) -> None:
    """What somebody on call should know: the end of an attempt that was no longer the present one."""
    doubted = isinstance(answer, InDoubt | Doubted) and not isinstance(ending, Doubt)
    if isinstance(answer, Stale | Unknown | AlreadyCommitted) or doubted:
        what, found = type(ending).__name__.lower(), type(answer).__name__.lower()
        log_event(_log, logging.ERROR, "gateway_told_too_late", what=what, found=found)
