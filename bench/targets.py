"""The targets, and how a run stands to them: every ratio is of two subjects of the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.harness import Result, Section

Results = Mapping[str, Result]


@dataclass(frozen=True, slots=True)
class Target:
    """One figure that is to be reached.

    Attributes:
        name: What the table calls it.
        unit: What stands behind a figure: ``x``, ``ms``, ``s``, ``GiB``.
        at_least: The figure that has to be reached.
        aim: The figure that is aimed at.
        smaller_is_better: Whether less is more.
        measure: The figure of a run.

    ``measure`` raises ``KeyError`` where the run did not measure what it needs.
    """

    name: str
    unit: str
    at_least: float
    aim: float
    smaller_is_better: bool
    measure: Callable[[Results], float]

    def reached(self, figure: float, wanted: float) -> bool:
        """Whether ``figure`` is as good as ``wanted``."""
        return figure <= wanted if self.smaller_is_better else figure >= wanted


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands to a target; ``measured`` is None where it did not measure it."""

    name: str
    unit: str
    measured: float | None
    at_least: float
    aim: float
    verdict: str


def _ratio(ours: str, theirs: str, figure: str = "ops_per_s") -> Callable[[Results], float]:
    return lambda results: results[ours].median(figure) / results[theirs].median(figure)


def _figure(subject: str, figure: str) -> Callable[[Results], float]:
    return lambda results: results[subject].median(figure)


def _growing(load: str) -> Callable[[Results], float]:
    return _ratio(f"growth/new/1000000/{load}", f"growth/new/10000/{load}")


def _resident_gib(results: Results) -> float:
    """The most that the server with ten million keys ever had."""
    used = results["growth/used/10000000"].median("resident_mib")
    return max(used, results["growth/start/10000000"].median("resident_mib")) / 1024


def _storm_gone(results: Results) -> float:
    """How long a storm of a million keys took; a smaller one says nothing about it.

    Where it was not over while it was watched, as long as it would have taken at that pace.
    """
    storm = results["expiry/storm"]
    keys, left = storm.median("keys"), storm.median("left")
    if keys < 1e6:
        raise KeyError("expiry/storm")
    return storm.median("gone_s") * keys / max(1.0, keys - left)


def _x(name: str, at_least: float, aim: float, ours: str, theirs: str, figure: str = "ops_per_s") -> Target:
    """A ratio; of times less is more."""
    return Target(name, "x", at_least, aim, figure != "ops_per_s", _ratio(ours, theirs, figure))


def _outboxes(what: str) -> tuple[str, str]:
    return f"outbox/idle/{what}/idemactor", f"outbox/idle/{what}/postgres"


def _less(name: str, unit: str, at_least: float, aim: float, measure: Callable[[Results], float]) -> Target:
    return Target(name, unit, at_least, aim, True, measure)


TARGETS: Final = (
    _x("RPC, 1 x 1, p50 against Redis's, same generator", 2.0, 1.3, "rpc/new/1x1", "redis/same/new/1x1", "p50_ms"),
    _x("RPC, 1 x 1, p50 against Redis's by redis-benchmark", 2.0, 1.3, "rpc/new/1x1", "redis/new/1x1", "p50_ms"),
    _x("RPC, 32 x 1, ops/s against Redis's", 0.4, 1.0, "rpc/new/32x1", "redis/new/32x1"),
    _x("RPC, 32 x 1, ops/s against PostgreSQL's", 2.0, 4.0, "rpc/new/32x1", "postgres/new/32x1"),
    _x("RPC, 8 x 64, ops/s against Redis's", 0.5, 1.0, "rpc/new/8x64", "redis/new/8x64"),
    _x("HTTP, 32 connections, ops/s against a Durable Object's", 8.0, 20.0, "http/new/32x1", "workerd/new/32x1"),
    _x("HTTP, 32 connections, ops/s against Redis's own protocol", 0.35, 0.9, "http/new/32x1", "redis/new/32x1"),
    _less("HTTP, one call at 100 a second, p50", "ms", 1.5, 0.4, _figure("http/calm", "p50_ms")),
    _less("HTTP, one call at 100 a second, p99", "ms", 5.0, 1.0, _figure("http/calm", "p99_ms")),
    _less("the decision itself, in the shard, p50", "ms", 0.1, 0.01, _figure("decision/reserve", "p50_ms")),
    _x("Python program, 32 tasks, against redis-py", 2.0, 4.0, "service/idemactor/32", "service/redis/32"),
    _x("Python program, 32 tasks, against psycopg", 3.0, 6.0, "service/idemactor/32", "service/postgres/32"),
    _x("durable dispatch, accepted/s against PostgreSQL's outbox", 3.0, 6.0, *_outboxes("accepted")),
    _x("durable dispatch, delivered/s against PostgreSQL's outbox", 3.0, 6.0, *_outboxes("delivered")),
    _less(
        "dispatch, from the call to its delivery, p50",
        "ms",
        10.0,
        3.0,
        _figure("outbox/idle/latency/idemactor", "p50_ms"),
    ),
    Target("1 million live keys against 10 thousand, 32 x 1, ops/s", "x", 0.8, 0.95, False, _growing("32x1")),
    Target("1 million live keys against 10 thousand, 8 x 64, ops/s", "x", 0.8, 0.95, False, _growing("8x64")),
    _less("10 million live keys, resident", "GiB", 1.5, 0.6, _resident_gib),
    _less(
        "10 million live keys, start to first answer", "s", 5.0, 1.0, _figure("growth/start/10000000", "first_answer_s")
    ),
    _less("kill -9 to first answer at 1 million keys", "s", 1.0, 0.3, _figure("growth/kill/1000000", "first_answer_s")),
    _x("expiry storm, callers' p99 against calm", 3.0, 1.5, "expiry/storm", "expiry/calm", "p99_ms"),
    _less("expiry storm, 1 million keys gone", "s", 60.0, 10.0, _storm_gone),
    _less("a single alarm step, whole turn, p99", "ms", 5.0, 2.0, _figure("alarm/turn", "p99_ms")),
)


def standings(sections: list[Section]) -> list[Standing]:
    """How a run stands to every target."""
    results = {result.id: result for section in sections for result in section.results if result.samples}
    return [_standing(target, results) for target in TARGETS]


def _standing(target: Target, results: Results) -> Standing:
    measured: float | None = None
    verdict = "not measured"
    try:
        measured = target.measure(results)
    except KeyError:
        pass
    else:
        if target.reached(measured, target.aim):
            verdict = "aim reached"
        else:
            verdict = "met" if target.reached(measured, target.at_least) else "NOT met"
    return Standing(target.name, target.unit, measured, target.at_least, target.aim, verdict)
