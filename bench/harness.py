"""What a benchmark is made of: subjects that are measured in turn, several times, and compared within one run.

Machines are shared and noisy, so subjects are interleaved (A B C, A B C, ...), the first round is thrown away, and
what counts is the median and its spread, and the ratio of two subjects of the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """One repetition: operations a second, and latencies in milliseconds where they were taken."""

    ops_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to measure.

    Attributes:
        name: What the table calls it.
        measure: Runs once for about the given number of seconds.
    """

    name: str
    measure: Callable[[float], Sample]


@dataclass(slots=True)
class Result:
    """The repetitions of one subject."""

    name: str
    samples: list[Sample] = field(default_factory=list)

    def median(self, of: Callable[[Sample], float]) -> float:
        """The median of a figure over the repetitions."""
        return statistics.median(of(sample) for sample in self.samples)

    def spread(self, of: Callable[[Sample], float]) -> tuple[float, float]:
        """The smallest and the largest of a figure."""
        figures = [of(sample) for sample in self.samples]
        return min(figures), max(figures)


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the sorted values lie; 0 where there are none."""
    if not sorted_values:
        return 0.0
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def sample_of(latencies_s: Sequence[float], seconds: float) -> Sample:
    """One repetition from its latencies and its length, both in seconds."""
    ordered = sorted(latencies_s)
    return Sample(
        ops_per_s=len(ordered) / seconds if seconds else 0.0,
        p50_ms=percentile(ordered, 0.50) * 1000,
        p99_ms=percentile(ordered, 0.99) * 1000,
    )


def run(subjects: Sequence[Subject], *, repetitions: int, seconds: float, warm_up_s: float) -> list[Result]:
    """Measure the subjects in turn, ``repetitions`` times, after one warm-up round that does not count."""
    for subject in subjects:
        subject.measure(warm_up_s)
    results = [Result(subject.name) for subject in subjects]
    for _ in range(repetitions):
        for subject, result in zip(subjects, results, strict=True):
            result.samples.append(subject.measure(seconds))
    return results
