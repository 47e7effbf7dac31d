"""What the metrics say, in the words of Prometheus."""

from __future__ import annotations

import re
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from idemactor.core.queries import Inspected
from idemactor.core.tally import Tally
from idemactor.errors import Code
from idemactor.observability.metrics import BATCH_BOUNDS, CONTENT_TYPE, Expected, Metrics, ShardStanding
from idemactor.observability.observer import Observer

STATES: Final = ("closed", "open", "half_open")
NOW_MS: Final = 1_700_000_010_000

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def standing(
    number: int, *tallies: tuple[tuple[str, str], Tally], oldest: int | None = None, answers: bool = True
) -> ShardStanding:
    inspected = Inspected(tallies, oldest, alarm_backlog=number + 5, waiting=number + 7) if answers else None
    return ShardStanding(number, queue_depth=number + 3, quarantined=not answers, in_memory=True, inspected=inspected)


def samples(metrics: Metrics, *standings: ShardStanding) -> Samples:
    exposition = metrics.render(standings, NOW_MS).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[f"idemactor_{name}", frozenset(labels.items())]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(process=False, seconds=lambda: 5.0)


def test_commands_are_counted_by_result(metrics: Metrics) -> None:
    metrics.decided(0, {("Reserve", "Reserved"): 3, ("Reserve", "InFlight"): 2}, 1)
    metrics.decided(1, {("Reserve", "Reserved"): 4, ("Forget", "QuotaExceeded"): 1}, 2)
    found = samples(metrics)
    assert value(found, "commands_total", command="reserve", result="reserved") == 7
    assert value(found, "commands_total", command="reserve", result="in_flight") == 2
    assert value(found, "commands_total", command="forget", result="quota_exceeded") == 1
    assert value(found, "rule_changes_total") == 3


def test_what_may_be_counted_begins_at_nothing() -> None:
    """Else the first of its kind would be no increase, to an alert."""
    expected = Expected(range(2), ("http",), ("github",), ("shop",), ("orders",), ("failed", "in_doubt"))
    metrics = Metrics(expected, process=False)
    born = {name: v for name, v in samples(metrics).items() if name[0].endswith("_total") and name[1]}
    assert set(born.values()) == {0}
    told = {f"{name.removeprefix('idemactor_')}{dict(sorted(labels))}" for name, labels in born}
    assert {
        "shard_batch_failures_total{'shard': '1'}",
        "shard_reload_failures_total{'shard': '0'}",
        "commands_total{'command': 'accept', 'result': 'quota_exceeded'}",
        "refused_total{'code': 'IDEMPOTENCY_UNAUTHENTICATED', 'door': 'http'}",
        "connection_failures_total{'door': 'http'}",
        "forged_total{'source': 'github'}",
        "gateway_unprotected_total{'namespace': 'shop'}",
        "deliveries_total{'namespace': 'orders', 'result': 'in_doubt'}",
    } <= told
    metrics.batch_failed(1, 9, None)
    metrics.refused("http", Code.FORBIDDEN)
    found = samples(metrics)
    assert [value(found, "shard_batch_failures_total", shard=str(n)) for n in range(2)] == [0, 1]
    assert value(found, "refused_total", door="http", code="IDEMPOTENCY_FORBIDDEN") == 1


def test_how_long_it_has_counted() -> None:
    now_s = 70.0
    metrics = Metrics(process=False, seconds=lambda: now_s)
    now_s = 72.5
    assert value(samples(metrics), "uptime_seconds") == 2.5


def test_batches_are_measured(metrics: Metrics) -> None:
    metrics.batch_written(0, 1, 0.0004, 0.0002)
    metrics.batch_written(0, 3, 0.002, 0.0008)
    metrics.batch_written(0, 5_000, 9.0, 8.0)
    found = samples(metrics)
    sizes = [value(found, "batch_commands_bucket", le=str(bound)) for bound in BATCH_BOUNDS]
    assert sizes == [1, 1, *[2] * (len(BATCH_BOUNDS) - 2)]
    assert value(found, "batch_commands_bucket", le="+Inf") == value(found, "batch_commands_count") == 3
    assert value(found, "batch_commands_sum") == 5_004
    assert value(found, "commit_seconds_bucket", le="0.0005") == 1
    assert value(found, "commit_seconds_count") == 3
    assert value(found, "sync_seconds_sum") == pytest.approx(8.001)


def test_a_value_on_a_bound_counts_below_it(metrics: Metrics) -> None:
    metrics.batch_written(0, 2, 0.0, 0.0)
    found = samples(metrics)
    assert value(found, "batch_commands_bucket", le="1.0") == 0
    assert value(found, "batch_commands_bucket", le="2.0") == 1


def test_what_happens_to_shards(metrics: Metrics) -> None:
    error = RuntimeError("x")
    metrics.swept(2, 5, 0.1)
    metrics.swept(2, 6, 0.1)
    metrics.alarm_failed(2, error, 100)
    metrics.batch_failed(2, 9, None)
    metrics.quarantined(2, error, 100)
    metrics.recovered(2)
    metrics.fenced(2)
    metrics.without_journal(2, "damaged")
    metrics.evicted(2)
    metrics.opened(2)
    found = samples(metrics)
    told = {
        name: value(found, f"shard_{name}_total", shard="2")
        for name in (
            "alarms_swept",
            "alarm_failures",
            "batch_failures",
            "commands_failed",
            "reload_failures",
            "recoveries",
            "fencings",
            "openings_without_journal",
            "evictions",
            "loads",
        )
    }
    assert told.pop("alarms_swept") == 11
    assert told.pop("commands_failed") == 9
    assert set(told.values()) == {1.0}


def test_what_happens_at_the_doors(metrics: Metrics) -> None:
    for _ in range(3):
        metrics.connection_opened("rpc")
    metrics.connection_closed("rpc")
    metrics.connection_opened("http")
    metrics.connection_failed("rpc", RuntimeError("x"))
    metrics.refused("http", "IDEMPOTENCY_FORBIDDEN")
    metrics.refused("http", "IDEMPOTENCY_FORBIDDEN")
    metrics.forged("github")
    metrics.overloaded(8)
    metrics.notification_ignored()
    found = samples(metrics)
    assert value(found, "connections_total", door="rpc") == 3
    assert value(found, "connections_open", door="rpc") == 2
    assert value(found, "connections_open", door="http") == 1
    assert value(found, "connection_failures_total", door="rpc") == 1
    assert value(found, "refused_total", door="http", code="IDEMPOTENCY_FORBIDDEN") == 2
    assert value(found, "forged_total", source="github") == 1
    assert value(found, "overloaded_total") == 8
    assert value(found, "rpc_notifications_ignored_total") == 1


def test_what_happens_at_the_gateway(metrics: Metrics) -> None:
    for reply in ("Reserved", "InFlight", "InFlight"):
        metrics.gateway_answered("trade", reply)
    metrics.gateway_settled("trade", "in_doubt")
    metrics.gateway_unprotected("trade")
    found = samples(metrics)
    assert value(found, "gateway_answers_total", namespace="trade", result="in_flight") == 2
    assert value(found, "gateway_answers_total", namespace="trade", result="reserved") == 1
    assert value(found, "gateway_verdicts_total", namespace="trade", verdict="in_doubt") == 1
    assert value(found, "gateway_unprotected_total", namespace="trade") == 1


def test_counts_are_added_up_over_the_shards_that_answer(metrics: Metrics) -> None:
    tally = Tally(records=6, pending=1, in_doubt=2, committed=3, contested=4, incidents=5)
    found = samples(
        metrics,
        standing(0, (("acme", "trade"), tally), (("acme", "other"), Tally(records=1)), oldest=NOW_MS - 2_500),
        standing(1, (("acme", "trade"), tally), oldest=NOW_MS - 9_000),
        standing(2, (("acme", "trade"), tally), answers=False),
    )
    labels = {"tenant": "acme", "namespace": "trade"}
    told = [value(found, name, **labels) for name in ("records", "pending", "in_doubt", "committed", "contested")]
    assert told == [12, 2, 4, 6, 8]
    assert value(found, "incidents", **labels) == 10
    assert value(found, "records", tenant="acme", namespace="other") == 1
    assert value(found, "oldest_pending_age_seconds") == 9
    assert [value(found, "shard_answers", shard=str(n)) for n in range(3)] == [1, 1, 0]
    assert [value(found, "shard_quarantined", shard=str(n)) for n in range(3)] == [0, 0, 1]
    assert [value(found, "queue_depth", shard=str(n)) for n in range(3)] == [3, 4, 5]
    assert [value(found, "alarm_backlog", shard=str(n)) for n in range(2)] == [5, 6]
    assert [value(found, "waiting", shard=str(n)) for n in range(2)] == [7, 8]
    assert ("idemactor_waiting", frozenset({("shard", "2")})) not in found


def test_the_oldest_in_doubt_of_each_namespace(metrics: Metrics) -> None:
    def doubting(number: int, *oldest: tuple[tuple[str, str], int]) -> ShardStanding:
        inspected = Inspected((), None, 0, 0, oldest_in_doubt_at=oldest)
        return ShardStanding(number, 0, False, True, inspected)

    trade, other = ("acme", "trade"), ("acme", "other")
    found = samples(
        metrics, doubting(0, (trade, NOW_MS - 5_000), (other, NOW_MS + 7)), doubting(1, (trade, NOW_MS - 60_000))
    )
    assert value(found, "oldest_in_doubt_age_seconds", tenant="acme", namespace="trade") == 60
    assert value(found, "oldest_in_doubt_age_seconds", tenant="acme", namespace="other") == 0


def test_when_a_shard_last_wrote(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.1239)
    metrics.batch_written(3, 1, 0.1, 0.1)
    assert value(samples(metrics), "last_write_timestamp_seconds", shard="3") == 1_700_000_000.124


def test_nothing_pends(metrics: Metrics) -> None:
    assert value(samples(metrics, standing(0)), "oldest_pending_age_seconds") == 0


def test_a_clock_that_went_back_gives_no_negative_age(metrics: Metrics) -> None:
    assert value(samples(metrics, standing(0, oldest=NOW_MS + 5)), "oldest_pending_age_seconds") == 0


def test_hostile_names_stay_in_their_labels(metrics: Metrics) -> None:
    tenant = 'a"\\\n{} x'
    found = samples(metrics, standing(0, ((tenant, "trade"), Tally(records=1))))
    assert value(found, "records", tenant=tenant, namespace="trade") == 1


def test_two_scrapes_of_the_same_are_the_same(metrics: Metrics) -> None:
    metrics.decided(0, {("Reserve", "Reserved"): 3}, 0)
    assert metrics.render([standing(0)], NOW_MS) == metrics.render([standing(0)], NOW_MS)


def test_the_process_is_there_where_it_is_wanted() -> None:
    assert b"process_resident_memory_bytes" in Metrics().render([], NOW_MS)
    assert b"process_resident_memory_bytes" not in Metrics(process=False).render([], NOW_MS)


def test_every_happening_is_overridden() -> None:
    happenings = {name for name in vars(Observer) if not name.startswith("_")}
    assert happenings - vars(Metrics).keys() == set()


def test_the_content_type_is_the_one_that_is_written(metrics: Metrics) -> None:
    assert re.fullmatch(r"text/plain; version=0\.0\.4; charset=utf-8", CONTENT_TYPE)
    assert metrics.render([], NOW_MS).startswith(b"# HELP idemactor_commands_total")


def test_dispatch_is_counted_and_shown(metrics: Metrics) -> None:
    metrics.delivered("orders", "succeeded")
    metrics.delivered("orders", "succeeded")
    metrics.delivered("orders", "in_doubt")
    metrics.reconciled("orders", "committed")
    metrics.deliveries_in_flight("orders", 3)
    metrics.breaker_changed("orders", "open")
    metrics.breaker_changed("orders", "half_open")
    found = samples(metrics)
    assert value(found, "deliveries_total", namespace="orders", result="succeeded") == 2
    assert value(found, "deliveries_total", namespace="orders", result="in_doubt") == 1
    assert value(found, "reconciled_total", namespace="orders", result="committed") == 1
    assert value(found, "deliveries_in_flight", namespace="orders") == 3
    states = {state: value(found, "destination_breaker", namespace="orders", state=state) for state in STATES}
    assert states == {"closed": 0, "open": 0, "half_open": 1}
