"""The metrics of several workers as one exposition."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from idemactor.core.tally import Tally
from idemactor.observability.merge import merged
from idemactor.observability.metrics import Metrics
from tests.observability.test_metrics import NOW_MS, Samples, standing


def samples(exposition: bytes) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def counted(reserved: int, *, process: bool = False) -> str:
    metrics = Metrics(process=process)
    metrics.decided(0, {("Reserve", "Reserved"): reserved}, 0)
    metrics.batch_written(0, reserved, 0.01, 0.01)
    return metrics.counted()


def test_what_workers_counted_stays_apart_and_shards_are_the_whole_servers() -> None:
    tally = (("acme", "trade"), Tally(records=3))
    standings = [standing(0, tally), standing(1, tally)]
    text = merged({0: counted(5), 1: counted(7)}, standings, NOW_MS)
    found = samples(text)

    def value(name: str, **labels: str) -> float:
        return found[f"idemactor_{name}", frozenset(labels.items())]

    assert value("commands_total", command="reserve", result="reserved", worker="0") == 5
    assert value("commands_total", command="reserve", result="reserved", worker="1") == 7
    assert value("batch_commands_sum", worker="1") == 7
    assert value("batch_commands_bucket", le="8.0", worker="1") == 1
    assert value("records", tenant="acme", namespace="trade") == 6
    assert [value("queue_depth", shard=str(shard)) for shard in (0, 1)] == [3, 4]
    assert [value("worker_up", worker=str(worker)) for worker in (0, 1)] == [1, 1]
    assert text.count(b"# TYPE idemactor_commands_total counter") == 1
    assert text.count(b"# TYPE idemactor_batch_commands histogram") == 1


def test_a_worker_that_says_nothing_is_down() -> None:
    found = samples(merged({0: counted(5, process=True), 1: None}, [], NOW_MS))
    assert found["idemactor_worker_up", frozenset({("worker", "1")})] == 0
    assert {dict(labels)["worker"] for name, labels in found if name == "process_resident_memory_bytes"} == {"0"}
    assert not any(name == "idemactor_commands_total" and ("worker", "1") in labels for name, labels in found)


def test_what_is_counted_says_nothing_of_shards() -> None:
    metrics = Metrics(process=False)
    assert "queue_depth" not in metrics.counted()
    assert "queue_depth" in metrics.render([standing(0)], NOW_MS).decode()
