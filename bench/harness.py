"""What a benchmark is made of: subjects that are measured in turn, several times, and compared within one run.

Machines are shared and noisy, so subjects are interleaved (A B C, A B C, ...), one round of warm-up is thrown away,
and what counts is the median and its spread, and the ratio of two subjects of the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Sample = Mapping[str, float]
"""The figures of one repetition by name; the unit comes last in the name (``p99_ms``, ``ops_per_s``)."""

PERCENTILES: Mapping[str, float] = {"p50_ms": 0.50, "p99_ms": 0.99, "p999_ms": 0.999}


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to measure.

    Attributes:
        id: What targets and plots look it up by, for example ``rpc/new/32x1``.
        name: What the table calls it.
        measure: Runs once for about the given number of seconds.
    """

    id: str
    name: str
    measure: Callable[[float], Sample]


@dataclass(slots=True)
class Result:
    """The repetitions of one subject."""

    id: str
    name: str
    samples: list[Sample] = field(default_factory=list)

    def median(self, figure: str) -> float:
        """The median of a figure over the repetitions.

        Raises:
            KeyError: No repetition has it.
        """
        values = self._values(figure)
        if not values:
            raise KeyError(f"{self.id} has no {figure}")
        return statistics.median(values)

    def spread(self, figure: str) -> tuple[float, float]:
        """The smallest and the largest of a figure."""
        values = self._values(figure)
        return min(values), max(values)

    def figures(self) -> list[str]:
        """The names of what was measured, in the order in which it came."""
        return list(dict.fromkeys(name for sample in self.samples for name in sample))

    def _values(self, figure: str) -> list[float]:
        return [sample[figure] for sample in self.samples if figure in sample]


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often and how long to measure; times in seconds."""

    repetitions: int
    seconds: float
    warm_up_s: float


@dataclass(slots=True)
class Section:
    """Subjects that belong into one table.

    Attributes:
        notes: Sentences under the table: what the figures mean, and what could not be measured and why.
    """

    id: str
    title: str
    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the sorted values lie; 0 where there are none."""
    if not sorted_values:
        return 0.0
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def latencies_ms(latencies_s: Iterable[float]) -> dict[str, float]:
    """The percentiles of latencies that are given in seconds."""
    ordered = sorted(latencies_s)
    return {name: percentile(ordered, share) * 1000 for name, share in PERCENTILES.items()}


def sample_of(latencies_s: Sequence[float], seconds: float) -> dict[str, float]:
    """One repetition from its latencies and its length, both in seconds."""
    rate = len(latencies_s) / seconds if seconds else 0.0
    return {"ops_per_s": rate, **latencies_ms(latencies_s)}


def run(subjects: Sequence[Subject], rounds: Rounds) -> list[Result]:
    """Measure the subjects in turn, after one warm-up round that does not count."""
    if rounds.warm_up_s > 0:
        for subject in subjects:
            subject.measure(rounds.warm_up_s)
    results = [Result(subject.id, subject.name) for subject in subjects]
    for _ in range(rounds.repetitions):
        for subject, result in zip(subjects, results, strict=True):
            result.samples.append(subject.measure(rounds.seconds))
    return results
