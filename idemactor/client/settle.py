"""What has to reach the server though its caller has left, or cannot wait: in the background, for as long as it takes.

A holder that was cancelled must not stay the holder. A commit whose answer did not come is sent again after its caller
was told so. A reservation whose answer came too late is given back. All of these run in tasks of the client, which no
caller's cancellation reaches; the caller waits for them as long as it likes. An ending that needs none of this, because
the server answers at once, is told by its caller's own task, and counts as open meanwhile all the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, assert_never

import anyio
from anyio.abc import TaskGroup

from idemactor.client.caller import Caller
from idemactor.client.endings import LAPSE_MS, Claim, Commit, Ending, GiveBack, LeaveInDoubt
from idemactor.client.errors import (
    ClientClosed,
    IdemactorClientError,
    InDoubtError,
    InFlightError,
    MismatchError,
    OutOfService,
    Refused,
    StaleTokenError,
    TooLarge,
    Unreachable,
)
from idemactor.client.flight import Flight
from idemactor.client.params import Acquisition, members
from idemactor.client.results import Completed, Reserved, Result, result_of
from idemactor.client.settlement import Settlement
from idemactor.core.limits import OUTCOME_BYTES_MAX
from idemactor.core.record import Outcome

GIVE_BACK_MS: Final = 300_000
"""How long it is tried to give back what nobody took up. What did happen is told for as long as the client is open."""

OPEN_MAX: Final = 10_000
"""How much may be open at a time: an outage must not fill the memory. One more is given up at once."""

_CLOSED: Final = "the client was closed before this was settled"

_log = logging.getLogger("idemactor.client")


@dataclass(frozen=True, slots=True)
class Report:
    """What became of telling the server about an operation that went on unprotected.

    Attributes:
        operation_id: The one that the caller used.
        delivered: The server knows about it now.
        possible_double: The server knew the key already, or of an attempt that never ended: somebody else may have had
            the same effect.
        found: What the server said, or why it could not be told.
    """

    namespace: str
    key: str
    operation_id: str
    delivered: bool
    possible_double: bool
    found: Result | IdemactorClientError | None


class Settler:
    """Settles in the background; ``tasks`` are the client's."""

    def __init__(self, caller: Caller, tasks: TaskGroup, on_report: Callable[[Report], None] | None) -> None:
        self._caller = caller
        self._tasks = tasks
        self._on_report = on_report
        self._open: set[Settlement] = set()
        self._closed = False

    @property
    def open(self) -> int:
        """How much is not settled yet."""
        return len(self._open)

    def end(self, claim: Claim, ending: Ending) -> Settlement:
        """End an attempt that is known by its token."""
        settlement = self._opened()
        if not settlement.over:
            self._go_on(settlement, claim, ending)
        return settlement

    async def end_here(self, claim: Claim, ending: Ending, budget_ms: int, cleanup_ms: int) -> Settlement:
        """The same in the caller's own task, which takes none of the client's as long as the server answers.

        Args:
            claim: Whose attempt.
            ending: How it ended.
            budget_ms: How long the caller waits. What is not over by then goes on in the background.
            cleanup_ms: How long a caller that is cancelled waits for what then goes on in the background.
        """
        settlement = self._opened()
        if settlement.over:
            return settlement
        error: IdemactorClientError | None = None
        try:
            settlement.result = await self._end(claim, ending, budget_ms)
        except OutOfService:
            self._go_on(settlement, claim, ending)
            return settlement
        except IdemactorClientError as refusal:
            error = refusal
        except BaseException:
            self._go_on(settlement, claim, ending)
            await settlement.wait_shortly(cleanup_ms)
            raise
        self._close(settlement, error)
        return settlement

    def _go_on(self, settlement: Settlement, claim: Claim, ending: Ending) -> None:
        """End an attempt in the background."""
        if self._closed:
            self._close(settlement, ClientClosed(_CLOSED))
            return
        limit_s = GIVE_BACK_MS / 1000 if isinstance(ending, GiveBack) else math.inf
        self._tasks.start_soon(self._run, settlement, lambda _: self._end(claim, ending), limit_s)

    def give_back(self, acquisition: Acquisition) -> Settlement:
        """End an attempt that nobody took up, if it was granted at all."""
        return self._start(lambda settlement: self._give_back(acquisition, settlement), GIVE_BACK_MS / 1000)

    def report(self, acquisition: Acquisition, ending: Ending, operation_id: str) -> Settlement:
        """Tell the server what was done while it did not answer.

        The reserve is asked again under its first request_id, and what it grants is ended as the body ended. That is
        better than an ``accept``: where the first question was carried out and only its answer was lost, the grant is
        our own and no double. Whatever else the server knows of the key by now may be one.
        """
        reported = self._start(lambda _: self._report(acquisition, ending, operation_id), math.inf)
        if reported.error is not None:
            params = acquisition.params
            self._tell(Report(params["namespace"], params["key"], operation_id, False, False, reported.error))
        return reported

    async def drain(self, patience_ms: int) -> None:
        """Wait for what is open, but not for long; what stays open then is lost, and said so."""
        with anyio.move_on_after(patience_ms / 1000, shield=True):
            while busy := self._busy():
                await busy[0].until_calm()
        self._closed = True
        if busy := self._busy():
            _log.warning("closed with %d operations not settled: their leases will run out", len(busy))

    def _busy(self) -> list[Settlement]:
        return [settlement for settlement in self._open if not settlement.idle]

    def _start(self, work: Callable[[Settlement], Awaitable[Any]], limit_s: float) -> Settlement:
        settlement = self._opened()
        if not settlement.over:
            self._tasks.start_soon(self._run, settlement, work, limit_s)
        return settlement

    def _opened(self) -> Settlement:
        settlement = Settlement()
        if self._closed:
            settlement.error = ClientClosed(_CLOSED)
        elif len(self._open) >= OPEN_MAX:
            settlement.error = Unreachable(f"{OPEN_MAX} operations are not settled yet")
        if settlement.error is not None:
            settlement.over = True
        else:
            self._open.add(settlement)
        return settlement

    def _close(self, settlement: Settlement, error: IdemactorClientError | None) -> None:
        settlement.error = error
        self._open.discard(settlement)
        settlement.change(over=True)

    async def _run(self, settlement: Settlement, work: Callable[[Settlement], Awaitable[Any]], limit_s: float) -> None:
        error: IdemactorClientError | None = ClientClosed(_CLOSED)
        try:
            with anyio.move_on_after(limit_s) as scope:
                settlement.result = await work(settlement)
                error = None
            if scope.cancelled_caught:
                error = Unreachable(f"not settled within {limit_s:.0f} s")
        except IdemactorClientError as refusal:
            error = refusal
        except Exception as mistake:  # A mistake in here must not end the client with all its holders.
            _log.exception("could not settle an operation")
            error = IdemactorClientError(f"could not settle: {mistake!r}")
        finally:
            self._close(settlement, error)

    # --------------------------------------------------------------------------------------------------------- the work

    async def _ask(self, method: str, budget_ms: int | None, **given: object) -> Result:
        return result_of(method, await self._caller.ask(Flight(method, members(**given)), budget_ms))

    async def _end(self, claim: Claim, ending: Ending, budget_ms: int | None = None) -> Result:
        where = {"namespace": claim.namespace, "key": claim.key, "token": claim.token}
        match ending:
            case Commit():
                return await self._commit(where, ending, budget_ms)
            case GiveBack(keep_evidence=True):
                return await self._ask("extend", budget_ms, **where, lease_ms=LAPSE_MS)
            case GiveBack():
                return await self._ask("release", budget_ms, **where, reason=ending.reason)
            case LeaveInDoubt():
                return await self._ask("doubt", budget_ms, **where, reason=ending.reason)
            case _:
                assert_never(ending)

    async def _commit(self, where: dict[str, Any], commit: Commit, budget_ms: int | None) -> Result:
        try:
            return await self._ask("commit", budget_ms, **where, outcome=commit.outcome)
        except TooLarge:
            # A commit never fails because of its outcome: what blocks the key is worth more than what it answers.
            return await self._ask("commit", budget_ms, **where, outcome=_over_size(commit.outcome))

    async def _give_back(self, acquisition: Acquisition, settlement: Settlement) -> Result | None:
        try:
            reserved = await self._look_ahead(acquisition, settlement) or await self._take_up(acquisition)
        except Refused:
            return None  # Not granted: nothing to give back.
        if not isinstance(reserved, Reserved):
            return None
        reason = "the caller left before it was answered"
        claim = Claim(acquisition.params["namespace"], acquisition.params["key"], reserved.token)
        return await self._end(claim, GiveBack(reason, keep_evidence=reserved.takeover))

    async def _look_ahead(self, acquisition: Acquisition, settlement: Settlement) -> Result | None:
        """What was answered already to a reserve whose caller left; None where nothing was.

        It finds out whether the reserve is only waiting: then its answer is long in coming, or none. It is asked again
        under its request_id, to be answered at once. Requests of one connection for one key are applied in order, so
        that who is told "in flight" knows that the first one was not granted before.
        """
        flight = acquisition.flight
        if not (flight.adopted and flight.waits_ms) or flight.answer is not None:
            return None
        again = Flight(acquisition.method, acquisition.params)
        try:
            return result_of(acquisition.method, await self._caller.ask(again, None))
        except InFlightError:
            settlement.change(idle=True)
            await flight.finished()
            settlement.change()
            return None

    async def _take_up(self, acquisition: Acquisition) -> Result:
        """What was answered to an acquisition whose caller is gone; a repeat gets the first answer."""
        answer = await self._caller.channel.adopt(acquisition.flight)
        if answer is not None and not isinstance(answer.error, OutOfService):
            if answer.error is not None:
                raise answer.error
            return result_of(acquisition.method, answer.result)
        return result_of(acquisition.method, await self._caller.ask(acquisition.sending(), None))

    async def _report(self, acquisition: Acquisition, ending: Ending, operation_id: str) -> Report:
        namespace, key = acquisition.params["namespace"], acquisition.params["key"]

        def told(found: Result | IdemactorClientError, *, delivered: bool, double: bool) -> Report:
            return Report(namespace, key, operation_id, delivered, double, found)

        try:
            found = await self._take_up(acquisition)
            if isinstance(found, Reserved):
                await self._end(Claim(namespace, key, found.token), ending)
            double = isinstance(found, Completed) or (isinstance(found, Reserved) and found.takeover)
            report = told(found, delivered=True, double=double)
        except (InFlightError, InDoubtError, MismatchError, StaleTokenError) as error:
            report = told(error, delivered=True, double=True)
        except IdemactorClientError as error:
            report = told(error, delivered=False, double=False)
        except BaseException:
            self._tell(told(ClientClosed(_CLOSED), delivered=False, double=False))
            raise
        self._tell(report)
        return report

    def _tell(self, report: Report) -> None:
        what = f"{report.namespace}: {report.operation_id} went on unprotected"
        if report.possible_double:
            _log.warning("%s, and may be a double", what)
        elif not report.delivered:
            _log.warning("%s, and the server could not be told: %s", what, report.found)
        try:
            if self._on_report is not None:
                self._on_report(report)
        except Exception:
            _log.exception("on_report failed")


def _over_size(outcome: Outcome | None) -> Outcome | None:
    """In place of an outcome that fits no frame, one that does and is over every namespace's size.

    So the server itself keeps it as omitted, and no repeat takes an empty answer for the answer.
    """
    if outcome is None:
        return None
    return Outcome(outcome.status, body=outcome.body[: OUTCOME_BYTES_MAX + 1].ljust(OUTCOME_BYTES_MAX + 1, b" "))
