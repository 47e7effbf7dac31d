"""What became of one delivery: how its attempt is settled, and what it says about its destination. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, assert_never

from idemactor.core.commands import Commit, Doubt, Postpone, Release
from idemactor.core.limits import REASON_CHARS_MAX
from idemactor.core.policy import OnFailure
from idemactor.core.queries import TakenIntent
from idemactor.dispatch.breaker import Breaker, BreakerState
from idemactor.dispatch.destination import Destination
from idemactor.dispatch.exchange import Answer, CutOff
from idemactor.dispatch.schedule import backoff_ms, retry_after_ms
from idemactor.gateway.proxy.call import Lost, NotSent, Unsendable
from idemactor.gateway.proxy.verdict import Verdict, reads_body, verdict_of

Ending = Commit | Release | Doubt | Postpone
Arrived = Answer | NotSent | Lost

_SERVER_ERRORS_FROM: Final = 500
_ASKS_TO_WAIT: Final = frozenset({429, 503})


class Result(enum.StrEnum):
    """How a delivery ended, as the metrics have it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RELEASED = "released"
    POSTPONED = "postponed"
    IN_DOUBT = "in_doubt"
    GIVEN_BACK = "given_back"


@dataclass(frozen=True, slots=True)
class Moment:
    """When something is judged.

    Attributes:
        now: Milliseconds since the epoch.
        chance: Random, from 0 up to 1.
    """

    now: int
    chance: float


def health_after(
    breaker: Breaker, request: object, arrived: Arrived, destination: Destination, moment: Moment
) -> Breaker:
    """The breaker once ``request`` has ended: open by what says that the destination is down, or refuses work."""
    match arrived:
        case CutOff() | Unsendable():
            return breaker.given_up(request, moment.now)
        case NotSent() | Lost():
            return breaker.failed(request, moment.now, moment.chance)
        case Answer():
            until = _asked_to_wait(arrived, moment.now)
            if until is not None:
                return breaker.asked_to_wait(until)
            if arrived.status >= _SERVER_ERRORS_FROM or arrived.status in destination.not_executed:
                return breaker.failed(request, moment.now, moment.chance)
            return breaker.answered(request)
        case _:
            assert_never(arrived)


def settled(
    taken: TakenIntent, arrived: Arrived, destination: Destination, breaker: Breaker, moment: Moment
) -> tuple[Result, Ending]:
    """How the attempt ends.

    Args:
        breaker: As it is after this.
    """
    match arrived:
        case CutOff():
            return Result.GIVEN_BACK, _again(taken, taken.accepted_at, str(arrived))
        case NotSent():
            # A destination that is down is no fault of the entry's: it keeps its place, and the breaker holds it.
            is_down = breaker.state is not BreakerState.CLOSED and not isinstance(arrived, Unsendable)
            due_at = taken.accepted_at if is_down else _later(taken, destination, moment)
            return Result.POSTPONED, _again(taken, due_at, str(arrived))
        case Lost():
            return _ambiguous(taken, destination, moment, str(arrived))
        case Answer():
            return _judged(taken, arrived, destination, moment)
        case _:
            assert_never(arrived)


def _judged(taken: TakenIntent, answer: Answer, destination: Destination, moment: Moment) -> tuple[Result, Ending]:
    verdict = verdict_of(destination, answer.status, answer.headers, answer.body)
    said = f"the destination answered {answer.status}"
    match verdict:
        case Verdict.SUCCESS:
            return Result.SUCCEEDED, Commit(taken.identity, taken.token, answer.outcome())
        case Verdict.FAILURE if destination.on_failure is OnFailure.FAILED:
            return Result.FAILED, Commit(taken.identity, taken.token, answer.outcome(), failed=True)
        case Verdict.FAILURE:
            return Result.RELEASED, Release(taken.identity, taken.token, said, failed=True)
        case Verdict.NOT_EXECUTED:
            until = _asked_to_wait(answer, moment.now) or 0
            due_at = max(until, _later(taken, destination, moment))
            return Result.POSTPONED, _again(taken, due_at, said)
        case Verdict.IN_DOUBT:
            unread = " and did not say whether it was done" if reads_body(destination, answer.status) else ""
            return _ambiguous(taken, destination, moment, f"{said}{unread}")
        case _:
            assert_never(verdict)


def _ambiguous(taken: TakenIntent, destination: Destination, moment: Moment, reason: str) -> tuple[Result, Ending]:
    """It may have happened: sent again only to a destination that recognises it."""
    reason = reason[:REASON_CHARS_MAX]
    if not destination.downstream_dedups:
        return Result.IN_DOUBT, Doubt(taken.identity, taken.token, reason)
    due_at = _later(taken, destination, moment)
    return Result.POSTPONED, Postpone(taken.identity, taken.token, due_at, perhaps_sent=True, reason=reason)


def _again(taken: TakenIntent, due_at: int, reason: str) -> Postpone:
    reason = reason[:REASON_CHARS_MAX]
    return Postpone(taken.identity, taken.token, due_at, perhaps_sent=False, reason=reason)


def _later(taken: TakenIntent, destination: Destination, moment: Moment) -> int:
    return moment.now + backoff_ms(destination.retry, taken.attempt, moment.chance)


def _asked_to_wait(answer: Answer, now: int) -> int | None:
    """Until when the destination wants to hear nothing, milliseconds since the epoch."""
    wait_ms = retry_after_ms(answer.header("retry-after"), now) if answer.status in _ASKS_TO_WAIT else None
    return None if wait_ms is None else now + wait_ms
