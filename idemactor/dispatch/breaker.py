"""Whether a destination is well: a state machine per destination. Pure: time and randomness are arguments.

Closed, everything goes. Open, nothing goes until the pause is over. Then one request is a probe: where that gets an
answer the breaker closes, where it does not the next pause is twice as long. What was under way when it opened says
nothing about it any more. Times are milliseconds since the epoch.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from idemactor.dispatch.limits import FAILURES_TO_OPEN, PAUSE_MS_MAX, PAUSE_MS_MIN


class BreakerState(enum.StrEnum):
    """How a destination stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Breaker:
    """One destination's.

    Attributes:
        failures: In a row, while it is closed.
        pause_ms: The present or latest pause, before chance spread it.
        until: The end of the pause, while it is open.
        probe: The token of the request that is the probe, while it is half open.
    """

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    pause_ms: int = 0
    until: int = 0
    probe: object = None

    def room(self, concurrency: int, in_flight: int, now: int) -> int:
        """How many more requests may begin at ``now``."""
        match self.state:
            case BreakerState.CLOSED:
                return max(0, concurrency - in_flight)
            case BreakerState.OPEN:
                return 1 if now >= self.until and not in_flight else 0
            case BreakerState.HALF_OPEN:
                return 0

    def begun(self, request: object, now: int) -> Breaker | None:
        """A request begins; None: it may not."""
        match self.state:
            case BreakerState.CLOSED:
                return self
            case BreakerState.OPEN if now >= self.until:
                return replace(self, state=BreakerState.HALF_OPEN, probe=request)
            case _:
                return None

    def answered(self, request: object) -> Breaker:
        """It gave an answer that shows that it is well."""
        match self.state:
            case BreakerState.CLOSED:
                return replace(self, failures=0) if self.failures else self
            case BreakerState.HALF_OPEN if self.probe is request:
                return Breaker()
            case _:
                return self

    def failed(self, request: object, now: int, chance: float) -> Breaker:
        """It could not be reached, did not answer in time, or said that it cannot."""
        match self.state:
            case BreakerState.CLOSED if self.failures + 1 < FAILURES_TO_OPEN:
                return replace(self, failures=self.failures + 1)
            case BreakerState.CLOSED:
                return self._opened(PAUSE_MS_MIN, now, chance)
            case BreakerState.HALF_OPEN if self.probe is request:
                return self._opened(min(2 * max(self.pause_ms, PAUSE_MS_MIN), PAUSE_MS_MAX), now, chance)
            case _:
                return self

    def asked_to_wait(self, until: int) -> Breaker:
        """It said itself when it wants to hear from anybody again."""
        if self.state is BreakerState.OPEN:
            return replace(self, until=max(self.until, until))
        return Breaker(BreakerState.OPEN, pause_ms=self.pause_ms, until=until)

    def given_up(self, request: object, now: int) -> Breaker:
        """A request that had begun was not sent after all: where it was the probe, the next one is."""
        if self.state is BreakerState.HALF_OPEN and self.probe is request:
            return Breaker(BreakerState.OPEN, pause_ms=self.pause_ms, until=now)
        return self

    @staticmethod
    def _opened(pause_ms: int, now: int, chance: float) -> Breaker:
        # At least half of the pause, so that it does grow; the rest is chance, so that several relays do not march.
        return Breaker(BreakerState.OPEN, pause_ms=pause_ms, until=now + int(pause_ms * (1 + chance) / 2))
