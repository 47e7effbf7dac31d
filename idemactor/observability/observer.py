"""What happens inside, for whoever wants to know: one empty method per happening. Metrics and logs override them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from idemactor.core.trouble import Trouble


class Observer:
    """Sees everything and does nothing. No method may raise or block, or be given a payload.

    Only ``troubled`` is given keys, which may be shown as the settings allow and no further.
    """

    def decided(self, shard: int, results: Mapping[tuple[str, str], int], rule_changes: int) -> None:
        """A batch was decided and is durable; ``results`` counts (command, result)."""

    def batch_written(self, shard: int, commands: int, commit_s: float, sync_s: float) -> None:
        """A batch of ``commands`` was committed; seconds for the transaction, and for its sync alone."""

    def swept(self, shard: int, alarms: int, seconds: float) -> None:
        """A step of alarm work was done."""

    def alarm_failed(self, shard: int, error: BaseException, retry_ms: int) -> None:
        """Alarm work failed and is tried again in ``retry_ms``; the shard goes on serving."""

    def batch_failed(self, shard: int, commands: int, error: BaseException | None) -> None:
        """A batch could not be written or read; its callers were told ``unavailable``."""

    def quarantined(self, shard: int, error: BaseException, retry_ms: int) -> None:
        """A shard could not be read back; it answers ``unavailable`` and is tried again in ``retry_ms``."""

    def recovered(self, shard: int) -> None:
        """A shard was read back after a failure and serves again."""

    def without_journal(self, shard: int, what: str) -> None:
        """A shard serves without its journal, which is damaged: it lacks nothing, and is slower."""

    def fenced(self, shard: int) -> None:
        """Somebody else owns the shard now; this owner answers ``unavailable`` from now on."""

    def evicted(self, shard: int) -> None:
        """An idle shard left memory."""

    def opened(self, shard: int) -> None:
        """A shard was read from disk."""

    def troubled(self, shard: int, troubles: Sequence[Trouble], untold: int) -> None:
        """Attempts or intents came into trouble, and it is on disk; ``untold``: how many others did."""

    def overloaded(self, commands: int) -> None:
        """Commands were refused because a mailbox was full or the server shuts down."""

    def refused(self, door: str, code: str) -> None:
        """A request never reached the state table."""

    def forged(self, source: str) -> None:
        """A request that came with the name of a source is not its sender's."""

    def connection_opened(self, door: str) -> None:
        """A client connected."""

    def connection_closed(self, door: str) -> None:
        """A client's connection ended, either way."""

    def connection_failed(self, door: str, error: BaseException) -> None:
        """A connection broke its protocol or its handler failed; only that connection was closed."""

    def notification_ignored(self) -> None:
        """A MessagePack-RPC notification came; nothing answers those."""

    def gateway_answered(self, namespace: str, result: str) -> None:
        """A shard told the reverse proxy how a request's key stands; ``result`` is the reply's name."""

    def gateway_settled(self, namespace: str, verdict: str) -> None:
        """An upstream's answer, or the lack of one, was judged."""

    def gateway_unprotected(self, namespace: str) -> None:
        """The reverse proxy sent a request on though no shard answered, as its namespace wants it."""

    def delivered(self, namespace: str, result: str) -> None:
        """An attempt of the relay's ended: ``succeeded``, ``failed``, ``postponed``, ``in_doubt``..."""

    def deliveries_in_flight(self, namespace: str, count: int) -> None:
        """The relay has ``count`` entries under way now."""

    def breaker_changed(self, namespace: str, state: str) -> None:
        """The destination's breaker is ``closed``, ``open`` or ``half_open`` from now on."""

    def reconciled(self, namespace: str, result: str) -> None:
        """The destination was asked what became of an operation; ``result`` is what came of that."""


class Observers(Observer):
    """Tells several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def decided(self, shard: int, results: Mapping[tuple[str, str], int], rule_changes: int) -> None:
        for observer in self._observers:
            observer.decided(shard, results, rule_changes)

    def batch_written(self, shard: int, commands: int, commit_s: float, sync_s: float) -> None:
        for observer in self._observers:
            observer.batch_written(shard, commands, commit_s, sync_s)

    def swept(self, shard: int, alarms: int, seconds: float) -> None:
        for observer in self._observers:
            observer.swept(shard, alarms, seconds)

    def alarm_failed(self, shard: int, error: BaseException, retry_ms: int) -> None:
        for observer in self._observers:
            observer.alarm_failed(shard, error, retry_ms)

    def batch_failed(self, shard: int, commands: int, error: BaseException | None) -> None:
        for observer in self._observers:
            observer.batch_failed(shard, commands, error)

    def quarantined(self, shard: int, error: BaseException, retry_ms: int) -> None:
        for observer in self._observers:
            observer.quarantined(shard, error, retry_ms)

    def recovered(self, shard: int) -> None:
        for observer in self._observers:
            observer.recovered(shard)

    def without_journal(self, shard: int, what: str) -> None:
        for observer in self._observers:
            observer.without_journal(shard, what)

    def fenced(self, shard: int) -> None:
        for observer in self._observers:
            observer.fenced(shard)

    def evicted(self, shard: int) -> None:
        for observer in self._observers:
            observer.evicted(shard)

    def opened(self, shard: int) -> None:
        for observer in self._observers:
            observer.opened(shard)

    def troubled(self, shard: int, troubles: Sequence[Trouble], untold: int) -> None:
        for observer in self._observers:
            observer.troubled(shard, troubles, untold)

    def overloaded(self, commands: int) -> None:
        for observer in self._observers:
            observer.overloaded(commands)

    def refused(self, door: str, code: str) -> None:
        for observer in self._observers:
            observer.refused(door, code)

    def forged(self, source: str) -> None:
        for observer in self._observers:
            observer.forged(source)

    def connection_opened(self, door: str) -> None:
        for observer in self._observers:
            observer.connection_opened(door)

    def connection_closed(self, door: str) -> None:
        for observer in self._observers:
            observer.connection_closed(door)

    def connection_failed(self, door: str, error: BaseException) -> None:
        for observer in self._observers:
            observer.connection_failed(door, error)

    def notification_ignored(self) -> None:
        for observer in self._observers:
            observer.notification_ignored()

    def gateway_answered(self, namespace: str, result: str) -> None:
        for observer in self._observers:
            observer.gateway_answered(namespace, result)

    def gateway_settled(self, namespace: str, verdict: str) -> None:
        for observer in self._observers:
            observer.gateway_settled(namespace, verdict)

    def gateway_unprotected(self, namespace: str) -> None:
        for observer in self._observers:
            observer.gateway_unprotected(namespace)

    def delivered(self, namespace: str, result: str) -> None:
        for observer in self._observers:
            observer.delivered(namespace, result)

    def deliveries_in_flight(self, namespace: str, count: int) -> None:
        for observer in self._observers:
            observer.deliveries_in_flight(namespace, count)

    def breaker_changed(self, namespace: str, state: str) -> None:
        for observer in self._observers:
            observer.breaker_changed(namespace, state)

    def reconciled(self, namespace: str, result: str) -> None:
        for observer in self._observers:
            observer.reconciled(namespace, result)


NOBODY = Observer()
"""Watches nothing."""
