"""The reconciler of one namespace: asks its destination what became of what nobody knows, and settles what that knows.

It keeps nothing but the time of its last look (``schedule.check_is_due``), so that a restart loses nothing. Whatever it
finds out it tells with the fencing token of the attempt that is in doubt: a holder that comes late, or an operator, and
the reconciler cannot both win.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator
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
        self._looked_at = 0
        self._unreachable = False

    async def run(self) -> None:
        """Look and ask, until cancelled: a question that is broken off changes nothing."""
        rest_ms = limits.RECONCILE_SCAN_MS
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._upstream.tidy)
            while True:
                began = self._around.now_ms()
                whole = await self._look(began)
                took_ms = self._around.now_ms() - began
                # What a destination that is down was not asked stays due; and it is left alone for longer and longer.
                rest_ms = limits.RECONCILE_SCAN_MS if whole else min(2 * rest_ms, limits.PAUSE_MS_MAX)
                least_ms = min(limits.RECONCILE_SHARE * took_ms, limits.RECONCILE_SCAN_MS_MAX)
                await trio.sleep(max(rest_ms, least_ms) / _MS_PER_S)

    async def _look(self, now: int) -> bool:
        """One round; whether everything that was due was asked about."""
        self._unreachable = False
        slots = trio.Semaphore(limits.RECONCILE_CONCURRENCY)
        async with trio.open_nursery() as nursery, contextlib.aclosing(self._due(now)) as due:
            async for question in due:
                if self._unreachable:
                    break
                # A place first, a task then: a million doubts are not a million tasks.
                await slots.acquire()
                nursery.start_soon(self._ask_about, question, slots)
        if not self._unreachable:
            self._looked_at = now
        return not self._unreachable

    async def _due(self, now: int) -> AsyncGenerator[Question, None]:
        for shard in range(self._around.shards.count):
            inspected = await self._around.shards.ask(shard, Inspect())
            if not isinstance(inspected, Inspected):
                continue
            for (tenant, namespace), tally in inspected.tallies:
                if namespace == self._namespace and tally.in_doubt:
                    async for question in self._listed(shard, tenant):
                        if check_is_due(question.record.reserved_at, self._looked_at, now, self._retry):
                            yield question

    async def _listed(self, shard: int, tenant: str) -> AsyncGenerator[Question, None]:
        after_id: int | None = 0
        while after_id is not None:
            query = ListRecords(tenant, self._namespace, IN_DOUBT, None, None, after_id, limits.RECONCILE_PAGE)
            page = await self._around.shards.ask(shard, query)
            if not isinstance(page, RecordsPage):
                return
            for _, key, record in page.rows:
                yield Question(Identity(tenant, self._namespace, key), record)
            after_id = page.next_after

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
            self._unreachable = True
            return "unreachable"
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
