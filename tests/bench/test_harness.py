"""The parts of the harness that only compute: what is counted, compared and written down."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgpack
import pytest

from bench import evidence, report, targets
from bench.harness import Result, Rounds, Sample, Section, Subject, latencies_ms, percentile, run, sample_of
from bench.load.protocols import HttpSpeaker, RespSpeaker, RpcSpeaker
from bench.load.spec import Outcome, Spec
from bench.plan import TINY, Bench


def test_percentiles_of_nothing_and_of_something() -> None:
    assert percentile([], 0.5) == 0.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.999) == 4.0
    assert latencies_ms([0.003, 0.001, 0.002]) == {"p50_ms": 2.0, "p99_ms": 3.0, "p999_ms": 3.0}


def test_a_repetition_counts_its_latencies() -> None:
    assert sample_of([0.001] * 10, 2.0)["ops_per_s"] == 5.0


def test_subjects_take_turns_and_the_warm_up_does_not_count() -> None:
    calls: list[tuple[str, float]] = []

    def measuring(name: str) -> Subject:
        def measure(seconds: float) -> Sample:
            calls.append((name, seconds))
            return {"ops_per_s": float(len(calls))}

        return Subject(name, name, measure)

    results = run([measuring("a"), measuring("b")], Rounds(repetitions=2, seconds=3.0, warm_up_s=1.0))
    assert calls == [("a", 1.0), ("b", 1.0), ("a", 3.0), ("b", 3.0), ("a", 3.0), ("b", 3.0)]
    assert [result.median("ops_per_s") for result in results] == [4.0, 5.0]
    assert results[0].spread("ops_per_s") == (3.0, 5.0)


def test_a_figure_that_nobody_measured_is_an_error() -> None:
    with pytest.raises(KeyError):
        Result("a", "a", [{"ops_per_s": 1.0}]).median("p50_ms")


def test_what_a_generator_says_comes_back_whole() -> None:
    spec = Spec("rpc", "unix:/a b", "cycle", 3, 4, 5.5, 6.5, "keys")
    assert Spec.from_json(spec.to_json()) == spec
    outcome = Outcome(1.5, 0.5, 2, 3, 4, array("d", [0.25, 1e-9]))
    assert Outcome.from_bytes(outcome.to_bytes()) == outcome


def test_rpc_calls_are_those_of_the_protocol_and_answers_name_their_call() -> None:
    speaker = RpcSpeaker()
    sent = [msgpack.unpackb(frame) for frame in (speaker.reserve(7, b"k"), speaker.commit(8, b"k", 2**52))]
    assert sent[0] == [0, 7, "reserve", [{"namespace": "default", "key": "k"}]]
    assert sent[1] == [0, 8, "commit", [{"namespace": "default", "key": "k", "token": 2**52}]]
    answers = msgpack.packb([1, 8, None, {"result": "committed"}]) + msgpack.packb([1, 7, "IDEMPOTENCY_X: no", None])
    half = len(answers) // 2
    read = [*speaker.read(answers[:half]), *speaker.read(answers[half:])]
    assert read == [(8, "committed", 0), (7, "", 0)]


@pytest.mark.parametrize("cut", [1, 20, 60, 120])
def test_http_answers_are_read_however_they_are_cut(cut: int) -> None:
    speaker = HttpSpeaker()
    assert speaker.reserve(1, b"k").endswith(b'Content-Length: 11\r\n\r\n{"key":"k"}')
    speaker.commit(2, b"k", 9)
    first, second = b'{"result":"reserved","token":9,"attempt":1}', b'{"result":"committed"}'
    head = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n"
    answers = head % len(first) + first + head.lower() % len(second) + second
    read = [*speaker.read(answers[:cut]), *speaker.read(answers[cut:])]
    assert read == [(1, "reserved", 9), (2, "committed", 0)]


def test_redis_answers_are_read_in_the_order_of_the_calls() -> None:
    speaker = RespSpeaker()
    assert speaker.reserve(1, b"k").startswith(b"*6\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n1\r\n")
    speaker.commit(2, b"k", 1)
    speaker.reserve(3, b"k")
    read = [*speaker.read(b"+OK\r\n:1\r"), *speaker.read(b"\n$-1\r\n")]
    assert read == [(1, "reserved", 1), (2, "committed", 2), (3, "completed", 3)]


def _measured(name: str, **figures: float) -> Result:
    return Result(name, name, [figures])


@pytest.mark.parametrize(("ours", "verdict"), [(30.0, "NOT met"), (40.0, "met"), (99.0, "met"), (100.0, "aim reached")])
def test_more_is_better_for_throughput(ours: float, verdict: str) -> None:
    results = [_measured("rpc/new/32x1", ops_per_s=ours), _measured("redis/new/32x1", ops_per_s=100.0)]
    (standing,) = [
        s for s in targets.standings([Section("rpc", "", results)]) if "32 x 1, ops/s against Redis" in s.name
    ]
    assert (standing.measured, standing.verdict) == (ours / 100, verdict)


@pytest.mark.parametrize(("p99_ms", "verdict"), [(5.1, "NOT met"), (5.0, "met"), (2.0, "aim reached")])
def test_less_is_better_for_times(p99_ms: float, verdict: str) -> None:
    section = Section("alarm", "", [_measured("alarm/turn", p99_ms=p99_ms)])
    (standing,) = [s for s in targets.standings([section]) if "alarm step" in s.name]
    assert (standing.measured, standing.verdict) == (p99_ms, verdict)


def test_what_was_not_measured_is_said_and_not_passed() -> None:
    assert {standing.verdict for standing in targets.standings([])} == {"not measured"}


def test_a_small_storm_says_nothing_about_a_large_one() -> None:
    section = Section("expiry", "", [_measured("expiry/storm", gone_s=1.0, keys=1_000.0, left=0.0)])
    (standing,) = [s for s in targets.standings([section]) if "1 million keys gone" in s.name]
    assert standing.measured is None


def test_a_storm_that_was_not_over_does_not_pass_for_one_that_was() -> None:
    section = Section("expiry", "", [_measured("expiry/storm", gone_s=60.0, keys=1e6, left=5e5)])
    (standing,) = [s for s in targets.standings([section]) if "1 million keys gone" in s.name]
    assert (standing.measured, standing.verdict) == (120.0, "NOT met")


def test_the_table_has_medians_and_the_spread_of_the_throughput(tmp_path: Path) -> None:
    bench = Bench(TINY, tmp_path, missing={"Redis": "no apt-get"})
    result = Result("disk/1", "a write", [{"ops_per_s": 1000.0}, {"ops_per_s": 3000.0}, {"ops_per_s": 2000.0}])
    bench.sections.append(Section("disk", "The physical limit", [result], ["A note."]))
    text = report.markdown(bench)
    assert "| a write | 2,000 (1,000 - 3,000) |" in text
    assert "A note." in text
    assert "Redis was not measured: no apt-get" in text


def test_a_grant_counts_as_synced_only_if_the_sync_came_after_the_last_write() -> None:
    request, answer = '1 recvfrom(3, "POST /reserve', '1 writev(3, [{"HTTP/1.1 201 Created'
    good = [request, "1 pwrite64(5, ", "1 fsync(5) = 0", answer]
    bad = [request, "1 pwrite64(5, ", "1 fsync(5) = 0", "1 pwrite64(5, ", answer]
    said = evidence.verdict([*good, *bad, *good])
    assert (said["grants_after_a_sync"], said["grants_without_a_sync"]) == (2, 1)
