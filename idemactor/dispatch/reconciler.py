"""The reconciler of one namespace: asks its destination what became of what nobody knows, and settles what that knows.

It keeps nothing but how far it has looked (``schedule.check_is_due``), so that a restart loses nothing. A round ends
where so many questions in a row got no answer that the destination counts as down; the next goes on there, after it has
been at every other place: a few that cannot be asked about hold up nobody. Whatever it finds out it tells with the
fencing token of the attempt that is in doubt: a holder that comes late, or an operator, and the reconciler cannot both
win.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import trio

from idemactor.core.commands import Postpone, Resolve, Verdict
from idemactor.core.keys import Identity
from idemactor.core.queries import Inspect, Inspected, ListRecords, RecordsPage
from idemactor.core.record import Record
from idemactor.core.replies import Committed, Overloaded, Postponed, Released, Unavailable
from idemactor.dispatch import limits
from idemactor.dispatch.destination import Destination, Retry, StatusPage
from idemactor.dispatch.exchange import Answer, exchange, question_of
from idemactor.dispatch.relay import Surroundings
from idemactor.dispatch.schedule import check_is_due
from idemactor.dispatch.signing import Signer
from idemactor.gateway.proxy.call import Lost, NotSent
from idemactor.gateway.proxy.upstream import Upstream
from idemactor.observability.logs import log_event

IN_DOUBT: Final = "in_doubt"
_MS_PER_S: Final = 1_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """An operation that nobody knows the fate of."""

    identity: Identity
    record: Record


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """What one tenant has in doubt on one shard."""

    shard: int
    tenant: str


@dataclass(slots=True)
class _Lap:
    """How far the doubts of one place were asked about.

    Attributes:
        looked_at: Every check that fell due up to here was made.
        until: Those up to here are being made.
        after_id: The last record that was passed; 0: the next round begins anew.
    """

    looked_at: int = 0
    until: int = 0
    after_id: int = 0


def finding(question: Question, page: StatusPage, answer: Answer, asked_at: int) -> Resolve | Postpone | None:
    """What a destination's answer settles; None: nothing. Pure.

    That it is not found is believed only where the policy says so, and only of a question that was put once nothing of
    the last attempt could still arrive: ``after_ms`` after its lease. What was dispatched is then delivered again.
    """
    record = question.record
    if answer.status in page.committed:
        return Resolve(question.identity, record.token, Verdict.COMMITTED, answer.outcome())
    ended_at = record.lease_expires_at
    if answer.status not in page.released or ended_at is None or asked_at < ended_at + page.after_ms:
        return None
    if record.delivery is None:
        return Resolve(question.identity, record.token, Verdict.RELEASED)
    reason = f"the destination answered {answer.status} when asked what became of it"
    return Postpone(question.identity, record.token, asked_at, perhaps_sent=False, reason=reason, absent=True)


class Reconciler:
    """Asks and settles, for one namespace.

    Args:
        namespace: Its name.
        destination: Signs, and says when to ask again.
        page: Where to ask.
        upstream: The connections to that.
        around: Everything else.
    """

    def __init__(
        self, namespace: str, destination: Destination, page: StatusPage, upstream: Upstream, around: Surroundings
    ) -> None:
        self._namespace = namespace
        self._timeout_ms = destination.timeout_ms
        self._retry: Retry = destination.retry
        self._page = page
        self._upstream = upstream
        self._around = around
        self._signer = Signer(destination.secrets)
        self._laps: dict[_Place, _Lap] = {}
        self._broken_off: _Place | None = None
        self._failures = 0
        self._is_answered = False
        self._scanned_ms = 0

    async def run(self) -> None:
        """Look and ask, until cancelled: a question that is broken off changes nothing."""
        rest_ms = limits.RECONCILE_SCAN_MS
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._upstream.tidy)
            while True:
                is_whole = await self._look(self._around.now_ms())
                # What a destination that is down was not asked stays due; and it is left alone for longer and longer.
                is_down = not is_whole and not self._is_answered
                rest_ms = min(2 * rest_ms, limits.PAUSE_MS_MAX) if is_down else limits.RECONCILE_SCAN_MS
                least_ms = min(limits.RECONCILE_SHARE * self._scanned_ms, limits.RECONCILE_SCAN_MS_MAX)
                await trio.sleep(max(rest_ms, least_ms) / _MS_PER_S)

    async def _look(self, now: int) -> bool:
        """One round; whether everything that was due was asked about."""
        self._failures, self._is_answered, self._scanned_ms = 0, False, 0
        slots = trio.Semaphore(limits.RECONCILE_CONCURRENCY)
        async with trio.open_nursery() as nursery:
            for place in await self._places():
                if not await self._go_on(place, now, nursery, slots):
                    self._broken_off = place
                    return False
        return True

    async def _places(self) -> list[_Place]:
        """Where something is in doubt; last, where the last round was broken off: it must not hold up the others."""
        places: set[_Place] = set()
        for shard in range(self._around.shards.count):
            inspected = await self._query(shard, Inspect())
            if not isinstance(inspected, Inspected):
                continue
            mine = [
                _Place(shard, tenant)
                for (tenant, namespace), tally in inspected.tallies
                if namespace == self._namespace and tally.in_doubt
            ]
            self._laps = {at: lap for at, lap in self._laps.items() if at.shard != shard or at in mine}
            places.update(mine)
        ordered, last = sorted(places), self._broken_off
        if last is None:
            return ordered
        return [at for at in ordered if at > last] + [at for at in ordered if at <= last]

    async def _go_on(self, place: _Place, now: int, nursery: trio.Nursery, slots: trio.Semaphore) -> bool:
        """Ask about what is due at one place, from where that was broken off; whether it was not broken off again."""
        lap = self._laps.setdefault(place, _Lap())
        if not lap.after_id:
            lap.until = now
        after_id: int | None = lap.after_id
        while after_id is not None:
            query = ListRecords(place.tenant, self._namespace, IN_DOUBT, None, None, after_id, limits.RECONCILE_PAGE)
            page = await self._query(place.shard, query)
            if not isinstance(page, RecordsPage):
                # The next round goes on here.
                return True
            for record_id, key, record in page.rows:
                if check_is_due(record.reserved_at, lap.looked_at, lap.until, self._retry):
                    # A place first, a task then: a million doubts are not a million tasks.
                    await slots.acquire()
                    if self._failures >= limits.FAILURES_TO_OPEN:
                        return False
                    question = Question(Identity(place.tenant, self._namespace, key), record)
                    nursery.start_soon(self._ask_about, question, slots)
                lap.after_id = record_id
            after_id = page.next_after
        lap.looked_at, lap.after_id = lap.until, 0
        return True

    async def _query(self, shard: int, query: Inspect | ListRecords) -> object:
        began = self._around.now_ms()
        try:
            return await self._around.shards.ask(shard, query)
        finally:
            self._scanned_ms += self._around.now_ms() - began

    async def _ask_about(self, question: Question, slots: trio.Semaphore) -> None:
        try:
            result = await self._asked(question)
        except Exception as error:  # What breaks about one must not keep the others from being asked about.
            log_event(_log, logging.ERROR, "reconciling_broke", error, namespace=self._namespace)
            result = "broke"
        finally:
            slots.release()
        self._around.observer.reconciled(self._namespace, result)

    async def _asked(self, question: Question) -> str:
        """What came of it, in the words of the metrics."""
        asked_at = self._around.now_ms()
        operation_id = question.record.operation_id
        outgoing = question_of(operation_id, self._page, self._signer, self._upstream.authority, asked_at)
        try:
            answer = await exchange(self._upstream, outgoing, trio.CancelScope(), self._timeout_ms)
        except (NotSent, Lost):
            self._failures += 1
            return "unreachable"
        self._failures, self._is_answered = 0, True
        settles = finding(question, self._page, answer, asked_at)
        if settles is None:
            return "unknown"
        return _word(await self._around.shards.tell(settles))


def _word(reply: object) -> str:
    match reply:
        case Committed():
            return "committed"
        case Released():
            return "released"
        case Postponed():
            return "redelivered"
        case Overloaded() | Unavailable():
            return "unavailable"
        case _:
            # Somebody else settled it meanwhile.
            return "too_late"
