"""The happenings that somebody on call wants to read about, as events in the log."""

from __future__ import annotations

import logging

from idemactor.errors import StorageError
from idemactor.observability.logs import log_event
from idemactor.observability.observer import Observer

_log = logging.getLogger(__name__)


class LogObserver(Observer):
    """Logs what goes wrong and what is rare; what happens with every call is the metrics' business."""

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


def _failed(event: str, error: BaseException | None, **fields: int) -> None:
    """What a disk refuses is said in words; what nobody foresaw keeps its traceback."""
    if isinstance(error, StorageError):
        what = f"{error}: {error.__cause__}" if error.__cause__ else str(error)
        log_event(_log, logging.ERROR, event, None, what=what, **fields)
    else:
        log_event(_log, logging.ERROR, event, error, **fields)
