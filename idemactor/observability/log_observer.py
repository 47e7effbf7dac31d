"""The happenings that somebody on call wants to read about, as events in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from idemactor.core.delivery import RELAY
from idemactor.core.trouble import Trouble, TroubleKind
from idemactor.errors import StorageError
from idemactor.observability.logs import Redact, log_event
from idemactor.observability.observer import Observer

TROUBLE_LINES_MAX: Final = 20
"""How many lines of one kind of trouble are written in ``TROUBLE_WINDOW_S``: many leases may end at one moment."""
TROUBLE_WINDOW_S: Final = 10.0
REASON_CHARS_MAX: Final = 200
"""How much of a destination's latest answer is written."""

_log = logging.getLogger(__name__)


class LogObserver(Observer):
    """Logs what goes wrong and what is rare; what happens with every call is the metrics' business.

    Args:
        redact: What may be shown of a key.
        destinations: Where the intents of a namespace are delivered to, for people.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        redact: Redact,
        destinations: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redact = redact
        self._destinations = destinations or {}
        self._limits = {kind: _Limit(clock) for kind in TroubleKind}

    def troubled(self, shard: int, troubles: Sequence[Trouble], untold: int) -> None:
        for trouble in troubles:
            if self._limits[trouble.kind].admits(trouble.kind.value):
                self._tell(shard, trouble)
        if untold:
            log_event(_log, logging.WARNING, "troubles_left_out", shard=shard, left_out=untold)

    def _tell(self, shard: int, trouble: Trouble) -> None:
        identity = trouble.identity
        stuck = trouble.kind is TroubleKind.INTENT_STUCK
        level = logging.INFO if trouble.kind is TroubleKind.WAITED_LONG else logging.WARNING
        log_event(
            _log,
            level,
            trouble.kind.value,
            shard=shard,
            tenant=identity.tenant,
            namespace=identity.namespace,
            key=self._redact.log_key(identity),
            operation_id=trouble.operation_id,
            attempt=trouble.attempt,
            holder=trouble.holder,
            new_holder=trouble.new_holder,
            since=trouble.since,
            for_ms=max(0, trouble.at - trouble.since),
            waited_ms=trouble.waited_ms,
            destination=self._destinations.get(identity.namespace) if stuck else None,
            due_at=trouble.due_at,
            reason=self._reason(trouble),
        )

    def _reason(self, trouble: Trouble) -> str | None:
        """What the relay says of a destination; what callers say may hold anything, and is shown as payloads are."""
        by_relay = trouble.holder is not None and trouble.holder.startswith(f"{RELAY} ")
        if trouble.reason is None or not (by_relay or self._redact.show):
            return None
        return trouble.reason[:REASON_CHARS_MAX]

    def alarm_failed(self, shard: int, error: BaseException, retry_ms: int) -> None:
        _failed("alarm_failed", error, shard=shard, retry_ms=retry_ms)

    def batch_failed(self, shard: int, commands: int, error: BaseException | None) -> None:
        _failed("batch_failed", error, shard=shard, commands=commands)

    def quarantined(self, shard: int, error: BaseException, retry_ms: int) -> None:
        _failed("shard_quarantined", error, shard=shard, retry_ms=retry_ms)

    def recovered(self, shard: int) -> None:
        log_event(_log, logging.WARNING, "shard_recovered", shard=shard)

    def without_journal(self, shard: int, what: str) -> None:
        log_event(_log, logging.ERROR, "journal_damaged", shard=shard, what=what)

    def fenced(self, shard: int) -> None:
        log_event(_log, logging.ERROR, "shard_fenced", shard=shard)

    def evicted(self, shard: int) -> None:
        log_event(_log, logging.DEBUG, "shard_evicted", shard=shard)

    def opened(self, shard: int) -> None:
        log_event(_log, logging.DEBUG, "shard_opened", shard=shard)

    def forged(self, source: str) -> None:
        # Somebody tries, or the secret is not the sender's any more: either way it is for people.
        log_event(_log, logging.INFO, "signature_refused", source=source)

    def connection_failed(self, door: str, error: BaseException) -> None:
        # What clients do is theirs, and they may do it often; a bug of ours was logged where it was caught.
        log_event(_log, logging.DEBUG, "connection_failed", door=door, what=type(error).__name__)

    def breaker_changed(self, namespace: str, state: str) -> None:
        # A probe comes and goes with every pause; that a destination is down, or well again, is for people.
        level = logging.DEBUG if state == "half_open" else logging.WARNING
        log_event(_log, level, "destination_breaker", namespace=namespace, state=state)


class _Limit:
    """Lets so many lines through in a while, and says how many it did not."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends_at = 0.0
        self._lines = 0
        self._left_out = 0

    def admits(self, event: str) -> bool:
        now = self._clock()
        if now >= self._ends_at:
            if self._left_out:
                log_event(_log, logging.WARNING, "troubles_left_out", of=event, left_out=self._left_out)
            self._ends_at, self._lines, self._left_out = now + TROUBLE_WINDOW_S, 0, 0
        self._lines += 1
        if self._lines <= TROUBLE_LINES_MAX:
            return True
        if not self._left_out:
            # At once as well: perhaps no other comes that could say how many there were.
            log_event(_log, logging.WARNING, "troubles_left_out", of=event, for_s=round(self._ends_at - now, 1))
        self._left_out += 1
        return False


def _failed(event: str, error: BaseException | None, **fields: int) -> None:
    """What a disk refuses is said in words; what nobody foresaw keeps its traceback."""
    if isinstance(error, StorageError):
        what = f"{error}: {error.__cause__}" if error.__cause__ else str(error)
        log_event(_log, logging.ERROR, event, None, what=what, **fields)
    else:
        log_event(_log, logging.ERROR, event, error, **fields)
