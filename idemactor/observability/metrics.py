"""Metrics for Prometheus: counted while serving, put into words when scraped.

The hot path adds to plain dicts and lists, once for each batch; names, labels and families are made at scrape time.
What only a shard's file knows comes as ``ShardStanding`` from whoever asked the shards. No label ever holds a key.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from idemactor import __version__
from idemactor.core.queries import Inspected, OutboxCount
from idemactor.core.tally import Tally, TallyKey
from idemactor.core.trouble import Trouble
from idemactor.errors import Code
from idemactor.observability.observer import Observer
from idemactor.observability.words import snake

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""What ``Metrics.render`` writes: the text format of Prometheus."""

BATCH_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
SECONDS_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class ShardStanding:
    """How one shard stands when the metrics are read.

    Attributes:
        number: From 0.
        queue_depth: Commands in its mailbox.
        quarantined: Whether it could not be read back.
        in_memory: Whether it is loaded.
        inspected: What it said itself; None: it did not answer in time.
    """

    number: int
    queue_depth: int
    quarantined: bool
    in_memory: bool
    inspected: Inspected | None


@dataclass(frozen=True, slots=True)
class Expected:
    """What may be counted here, as far as it is known before anything happens.

    It is counted as 0 from the start: a series that came to be with its first event would come with a value, and to
    ``increase`` and ``rate`` that event, or the whole burst before the first scrape, would be none.

    Attributes:
        shards: The numbers of those that this process owns.
        doors: The names of those that are open.
        sources: The names of those that verify: of others nothing can be forged.
        proxied: The namespaces of the reverse proxy's routes.
        destinations: The namespaces whose intents are delivered from here.
        deliveries: How a delivery may end.
    """

    shards: Sequence[int] = ()
    doors: Sequence[str] = ()
    sources: Sequence[str] = ()
    proxied: Sequence[str] = ()
    destinations: Sequence[str] = ()
    deliveries: Sequence[str] = ()


class _Histogram:
    """Counts values by upper bound."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def family(self, name: str, help_text: str) -> HistogramMetricFamily:
        bounds = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
        return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=self._total)


_NOTHING: Final = Expected()


class Metrics(Observer, Collector):
    """An observer that counts what it sees, and the collector of the registry it lives in.

    Args:
        expected: What is counted as 0 from the start.
        process: Also report this process's memory, CPU and descriptors.
        seconds: A clock that only goes forward, for how long this has been counting.
    """

    def __init__(
        self, expected: Expected = _NOTHING, *, process: bool = True, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._began_s = seconds()
        self._results: Counter[tuple[str, str]] = Counter()
        self._events: Counter[tuple[str, int]] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()
        self._forged: Counter[str] = Counter()
        self._opened: Counter[str] = Counter()
        self._closed: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._gateway: Counter[tuple[str, str, str]] = Counter()
        self._written: dict[int, float] = {}
        self._dispatch: Counter[tuple[str, str, str]] = Counter()
        self._in_flight: dict[str, int] = {}
        self._breakers: dict[str, str] = {}
        self._troubles: Counter[tuple[str, str]] = Counter()
        self._rule_changes = 0
        self._overloaded = 0
        self._notifications = 0
        self._batch_sizes = _Histogram(BATCH_BOUNDS)
        self._commit_s = _Histogram(SECONDS_BOUNDS)
        self._sync_s = _Histogram(SECONDS_BOUNDS)
        self._standings: Sequence[ShardStanding] | None = ()
        self._now_ms = 0
        self._begin_at_nothing(expected)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        if process:
            ProcessCollector(registry=self.registry)

    def _begin_at_nothing(self, expected: Expected) -> None:
        self._results.update(dict.fromkeys(((command, "QuotaExceeded") for command in _OF_NEW_KEYS), 0))
        self._events.update(dict.fromkeys(((event, shard) for event in _EVENTS for shard in expected.shards), 0))
        self._refused.update(dict.fromkeys(((door, code) for door in expected.doors for code in _OF_CALLERS), 0))
        self._opened.update(dict.fromkeys(expected.doors, 0))
        self._failed.update(dict.fromkeys(expected.doors, 0))
        self._forged.update(dict.fromkeys(expected.sources, 0))
        self._gateway.update(dict.fromkeys((("unprotected", space, "") for space in expected.proxied), 0))
        delivered = (("deliveries", space, word) for space in expected.destinations for word in expected.deliveries)
        self._dispatch.update(dict.fromkeys(delivered, 0))

    def render(self, standings: Sequence[ShardStanding], now_ms: int) -> bytes:
        """The whole exposition, as ``CONTENT_TYPE`` says.

        Args:
            standings: Every shard, as it stands now.
            now_ms: The time, milliseconds since the epoch; ages count from it.
        """
        self._standings, self._now_ms = standings, now_ms
        return generate_latest(self.registry)

    def families(self, standings: Sequence[ShardStanding], now_ms: int) -> list[Metric]:
        """What ``render`` puts into words, for who has words of their own."""
        self._standings, self._now_ms = standings, now_ms
        return list(self.registry.collect())

    def counted(self) -> str:
        """The exposition of what this process counted, without how the shards stand."""
        self._standings = None
        return generate_latest(self.registry).decode()

    # ------------------------------------------------------------------------------------------------- what happens

    def decided(self, shard: int, results: Mapping[tuple[str, str], int], rule_changes: int) -> None:  # noqa: ARG002
        self._results.update(results)
        self._rule_changes += rule_changes

    def batch_written(self, shard: int, commands: int, commit_s: float, sync_s: float) -> None:
        self._written[shard] = time.time()
        self._batch_sizes.add(commands)
        self._commit_s.add(commit_s)
        self._sync_s.add(sync_s)

    def swept(self, shard: int, alarms: int, seconds: float) -> None:  # noqa: ARG002
        self._events["alarms_swept", shard] += alarms

    def alarm_failed(self, shard: int, error: BaseException, retry_ms: int) -> None:  # noqa: ARG002
        self._events["alarm_failures", shard] += 1

    def batch_failed(self, shard: int, commands: int, error: BaseException | None) -> None:  # noqa: ARG002
        self._events["batch_failures", shard] += 1
        self._events["commands_failed", shard] += commands

    def quarantined(self, shard: int, error: BaseException, retry_ms: int) -> None:  # noqa: ARG002
        self._events["reload_failures", shard] += 1

    def recovered(self, shard: int) -> None:
        self._events["recoveries", shard] += 1

    def without_journal(self, shard: int, what: str) -> None:  # noqa: ARG002
        self._events["openings_without_journal", shard] += 1

    def fenced(self, shard: int) -> None:
        self._events["fencings", shard] += 1

    def evicted(self, shard: int) -> None:
        self._events["evictions", shard] += 1

    def opened(self, shard: int) -> None:
        self._events["loads", shard] += 1

    def troubled(self, shard: int, troubles: Sequence[Trouble], untold: int) -> None:  # noqa: ARG002
        for trouble in troubles:
            self._troubles[trouble.identity.namespace, trouble.kind.value] += 1
        if untold:
            self._troubles["", "left_out"] += untold

    def overloaded(self, commands: int) -> None:
        self._overloaded += commands

    def refused(self, door: str, code: str) -> None:
        self._refused[door, str(code)] += 1

    def forged(self, source: str) -> None:
        self._forged[source] += 1

    def connection_opened(self, door: str) -> None:
        self._opened[door] += 1

    def connection_closed(self, door: str) -> None:
        self._closed[door] += 1

    def connection_failed(self, door: str, error: BaseException) -> None:  # noqa: ARG002
        self._failed[door] += 1

    def notification_ignored(self) -> None:
        self._notifications += 1

    def gateway_answered(self, namespace: str, result: str) -> None:
        self._gateway["answers", namespace, snake(result)] += 1

    def gateway_settled(self, namespace: str, verdict: str) -> None:
        self._gateway["verdicts", namespace, verdict] += 1

    def gateway_unprotected(self, namespace: str) -> None:
        self._gateway["unprotected", namespace, ""] += 1

    def delivered(self, namespace: str, result: str) -> None:
        self._dispatch["deliveries", namespace, result] += 1

    def deliveries_in_flight(self, namespace: str, count: int) -> None:
        self._in_flight[namespace] = count

    def breaker_changed(self, namespace: str, state: str) -> None:
        self._breakers[namespace] = state

    def reconciled(self, namespace: str, result: str) -> None:
        self._dispatch["reconciled", namespace, result] += 1

    # ----------------------------------------------------------------------------------------------- put into words

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not looked up beforehand, so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family of idemactor."""
        yield self._commands()
        yield _counter("rule_changes", "Fingerprints treated as absent: made under another rule.", self._rule_changes)
        yield _counter(
            "overloaded", "Commands refused: mailbox full, shutting down, or no room for the answer.", self._overloaded
        )
        yield _counter("rpc_notifications_ignored", "Notifications dropped.", self._notifications)
        yield self._batch_sizes.family("idemactor_batch_commands", "Commands that shared one transaction.")
        yield self._commit_s.family("idemactor_commit_seconds", "Seconds for one transaction, its sync included.")
        yield self._sync_s.family("idemactor_sync_seconds", "Seconds for the sync of one transaction.")
        refused = self._refused.items()
        yield _labelled("refused", "Requests that never reached the state table.", ("door", "code"), refused)
        forged = [((source,), count) for source, count in self._forged.items()]
        yield _labelled("forged", "Requests that are not their sender's, by source.", ("source",), forged)
        troubles = self._troubles.items()
        yield _labelled("troubles", "What the log tells of keys, by its event.", ("namespace", "event"), troubles)
        yield from self._connections()
        yield from self._of_gateway()
        yield from self._of_dispatch()
        yield from self._shard_events()
        written = {shard: round(at, 3) for shard, at in self._written.items()}
        yield _by_shard("last_write_timestamp_seconds", "When a batch was last written, Unix time.", written)
        build = GaugeMetricFamily("idemactor_build_info", "Which version runs.", labels=("version",))
        build.add_metric((__version__,), 1)
        yield build
        uptime_s = round(self._seconds() - self._began_s, 3)
        yield GaugeMetricFamily("idemactor_uptime_seconds", "Seconds since these counts began at 0.", value=uptime_s)
        if self._standings is not None:
            yield from standing_families(self._standings, self._now_ms)

    def _commands(self) -> Metric:
        named = [((snake(command), snake(result)), n) for (command, result), n in self._results.items()]
        return _labelled("commands", "Commands decided and durable.", ("command", "result"), named)

    def _connections(self) -> Iterator[Metric]:
        opened = [((door,), n) for door, n in self._opened.items()]
        yield _labelled("connections", "Connections accepted.", ("door",), opened)
        failed = [((door,), n) for door, n in self._failed.items()]
        yield _labelled("connection_failures", "Connections that broke their protocol, or us.", ("door",), failed)
        gauge = GaugeMetricFamily("idemactor_connections_open", "Connections open now.", labels=("door",))
        for door, count in self._opened.items():
            gauge.add_metric((door,), count - self._closed[door])
        yield gauge

    def _of_gateway(self) -> Iterator[Metric]:
        for kind, (label, help_text) in _GATEWAY.items():
            counts = [
                ((space, word) if label else (space,), n) for (k, space, word), n in self._gateway.items() if k == kind
            ]
            yield _labelled(f"gateway_{kind}", help_text, ("namespace", label) if label else ("namespace",), counts)

    def _of_dispatch(self) -> Iterator[Metric]:
        for kind, help_text in _DISPATCH.items():
            counts = [((space, word), n) for (k, space, word), n in self._dispatch.items() if k == kind]
            yield _labelled(kind, help_text, ("namespace", "result"), counts)
        gauge = GaugeMetricFamily("idemactor_deliveries_in_flight", "Deliveries under way now.", labels=("namespace",))
        for namespace, count in self._in_flight.items():
            gauge.add_metric((namespace,), count)
        yield gauge
        breakers = GaugeMetricFamily(
            "idemactor_destination_breaker", "1: the breaker is in this state.", labels=("namespace", "state")
        )
        for namespace, present in self._breakers.items():
            for state in _BREAKER_STATES:
                breakers.add_metric((namespace, state), float(state == present))
        yield breakers

    def _shard_events(self) -> Iterator[Metric]:
        for event, help_text in _EVENTS.items():
            values = [((str(shard),), n) for (name, shard), n in self._events.items() if name == event]
            yield _labelled(f"shard_{event}", help_text, ("shard",), values)


_GATEWAY: Final = {
    "answers": ("result", "Requests of protected routes, by how their key stood."),
    "verdicts": ("verdict", "Requests that went to an upstream, by what its answer said of the effect."),
    "unprotected": ("", "Requests that went to an upstream while no shard answered."),
}
_DISPATCH: Final = {
    "deliveries": "Attempts to deliver an intent, by how they ended.",
    "reconciled": "Questions to destinations about operations in doubt, by what came of them.",
}
_OF_NEW_KEYS: Final = ("Reserve", "Accept", "Dispatch")
"""The commands that make a key, for which there may be no room."""
_OF_CALLERS: Final = (Code.UNAUTHENTICATED.value, Code.FORBIDDEN.value)
"""What callers are told who may not do what they ask."""
_BREAKER_STATES: Final = ("closed", "open", "half_open")
_EVENTS: Final = {
    "alarms_swept": "Alarms dealt with.",
    "alarm_failures": "Steps of alarm work that failed.",
    "batch_failures": "Batches that could not be written or read.",
    "commands_failed": "Commands told unavailable because their batch failed.",
    "reload_failures": "Attempts to read a shard back that failed.",
    "recoveries": "Times a shard was read back after a failure.",
    "fencings": "Times another owner took a shard over.",
    "openings_without_journal": "Times a shard was opened beside a damaged journal, of which it lacks nothing.",
    "evictions": "Times an idle shard left memory.",
    "loads": "Times a shard was read from disk.",
}


def _counter(name: str, help_text: str, value: int) -> Metric:
    return CounterMetricFamily(f"idemactor_{name}", help_text, value=value)


def _labelled(
    name: str, help_text: str, labels: tuple[str, ...], counts: Iterable[tuple[Sequence[str], int]]
) -> Metric:
    family = CounterMetricFamily(f"idemactor_{name}", help_text, labels=labels)
    for values, count in counts:
        family.add_metric(values, count)
    return family


def standing_families(standings: Sequence[ShardStanding], now_ms: int) -> Iterator[Metric]:
    """The families that say how the shards stand, of whichever process they are."""
    yield from _shard_gauges(standings)
    yield from _tally_gauges(standings)
    yield _oldest(standings, now_ms)
    yield _oldest_in_doubt(standings, now_ms)
    yield from _outbox_gauges(standings, now_ms)


def _shard_gauges(standings: Sequence[ShardStanding]) -> Iterator[Metric]:
    yield _by_shard("queue_depth", "Commands in the mailbox.", {s.number: s.queue_depth for s in standings})
    yield _by_shard("shard_quarantined", "1: cannot be read.", {s.number: s.quarantined for s in standings})
    yield _by_shard("shard_in_memory", "1: loaded.", {s.number: s.in_memory for s in standings})
    answered = {s.number: s.inspected is not None for s in standings}
    yield _by_shard("shard_answers", "0: did not answer in time.", answered)
    inspected = {s.number: s.inspected for s in standings if s.inspected is not None}
    yield _by_shard("alarm_backlog", "Alarms overdue.", {n: i.alarm_backlog for n, i in inspected.items()})
    yield _by_shard("waiting", "Callers that wait for a key.", {n: i.waiting for n, i in inspected.items()})


def _by_shard(name: str, help_text: str, values: Mapping[int, float]) -> Metric:
    family = GaugeMetricFamily(f"idemactor_{name}", help_text, labels=("shard",))
    for shard, value in values.items():
        family.add_metric((str(shard),), float(value))
    return family


def _tally_gauges(standings: Sequence[ShardStanding]) -> Iterator[Metric]:
    """The shards' counts, added up; those of a shard that did not answer are missing, see ``shard_answers``."""
    totals = _totals(standings)
    for field in fields(Tally):
        family = GaugeMetricFamily(f"idemactor_{field.name}", _TALLIES[field.name], labels=("tenant", "namespace"))
        for key, tally in totals.items():
            family.add_metric(key, getattr(tally, field.name))
        yield family


_TALLIES: Final = {
    "records": "Keys that have a record or a tombstone.",
    "pending": "Operations whose lease runs.",
    "in_doubt": "Operations nobody knows the fate of.",
    "committed": "Operations that are committed and block.",
    "contested": "Records that an incident speaks against.",
    "incidents": "Incidents nobody has acknowledged.",
}


def _totals(standings: Sequence[ShardStanding]) -> dict[TallyKey, Tally]:
    totals: dict[TallyKey, Tally] = {}
    for standing in standings:
        for key, tally in standing.inspected.tallies if standing.inspected else ():
            total = totals.setdefault(key, Tally())
            for field in fields(Tally):
                setattr(total, field.name, getattr(total, field.name) + getattr(tally, field.name))
    return totals


def _oldest(standings: Sequence[ShardStanding], now_ms: int) -> Metric:
    inspected = [standing.inspected for standing in standings if standing.inspected]
    began = [one.oldest_pending_at for one in inspected if one.oldest_pending_at is not None]
    age_s = max(0, now_ms - min(began)) / _MS_PER_S if began else 0
    return GaugeMetricFamily(
        "idemactor_oldest_pending_age_seconds", "Age of the oldest pending attempt; 0: none.", value=age_s
    )


def _oldest_in_doubt(standings: Sequence[ShardStanding], now_ms: int) -> Metric:
    oldest: dict[TallyKey, int] = {}
    for standing in standings:
        for key, at in standing.inspected.oldest_in_doubt_at if standing.inspected else ():
            oldest[key] = min(at, oldest.get(key, at))
    family = GaugeMetricFamily(
        "idemactor_oldest_in_doubt_age_seconds",
        "Seconds since the attempt began that is longest in doubt; none: nothing is.",
        labels=("tenant", "namespace"),
    )
    for key, at in oldest.items():
        family.add_metric(key, max(0, now_ms - at) / _MS_PER_S)
    return family


def _outbox_gauges(standings: Sequence[ShardStanding], now_ms: int) -> Iterator[Metric]:
    """By tenant, namespace and kind, over all shards; none: nothing is there, or wanted yet."""
    labels = ("tenant", "namespace", "kind")
    entries = GaugeMetricFamily("idemactor_outbox_entries", "Intents and events to be delivered.", labels=labels)
    ages = GaugeMetricFamily(
        "idemactor_oldest_undelivered_age_seconds",
        "Seconds since the entry was accepted, and its time had come, that waits longest to be delivered.",
        labels=labels,
    )
    counts: dict[tuple[str, str, str], list[OutboxCount]] = {}
    for standing in standings:
        for count in standing.inspected.outbox if standing.inspected else ():
            counts.setdefault((count.tenant, count.namespace, count.kind.name.lower()), []).append(count)
    for key, found in counts.items():
        entries.add_metric(key, sum(count.entries for count in found))
        since = [count.oldest_at for count in found if count.oldest_at is not None]
        if since:
            ages.add_metric(key, max(0, now_ms - min(since)) / _MS_PER_S)
    yield entries
    yield ages
