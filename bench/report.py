"""What a run leaves: figures as JSON for programs, and Markdown tables for people."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.harness import Result, Section
from bench.plan import Bench
from bench.targets import Standing, standings

COLUMNS: Final[Mapping[str, tuple[str, str]]] = {
    "offered_per_s": ("offered/s", ",.0f"),
    "ops_per_s": ("ops/s", ",.0f"),
    "p50_ms": ("p50 ms", ".3f"),
    "p99_ms": ("p99 ms", ".3f"),
    "p999_ms": ("p99.9 ms", ".3f"),
    "max_ms": ("max ms", ".3f"),
    "refused": ("refused", ",.0f"),
    "first_answer_s": ("first answer s", ".2f"),
    "resident_mib": ("resident MiB", ",.0f"),
    "disk_bytes_per_key": ("bytes on disk a key", ",.0f"),
    "gone_s": ("gone s", ".1f"),
    "left": ("left", ",.0f"),
    "generator_busy": ("generator's core", ".2f"),
    "server_cpu_s_per_million": ("server CPU s a million", ".1f"),
}
"""What each figure is called, and how it is written; figures that are not here are in the JSON alone."""

SPREAD_OF: Final = "ops_per_s"


def markdown(bench: Bench) -> str:
    """The whole report."""
    parts = [f"Measured {_about(bench)}.", _targets_table(standings(bench.sections))]
    parts += [f"### {section.title}\n\n{_table(section)}" for section in bench.sections]
    parts += [f"{name} was not measured: {why}" for name, why in bench.missing.items()]
    return "\n\n".join(parts) + "\n"


def write(bench: Bench, directory: Path) -> None:
    """Write ``results.json`` and ``results.md`` into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    figures = {
        "about": {
            "plan": bench.plan.name,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "elapsed_s": round(bench.elapsed_s()),
            "cpus": os.cpu_count(),
            "load_before": bench.load_before,
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
        "targets": [asdict(standing) for standing in standings(bench.sections)],
        "missing": bench.missing,
        "evidence": bench.evidence,
        "sections": [asdict(section) for section in bench.sections],
    }
    rounded = json.loads(json.dumps(figures), parse_float=lambda text: float(f"{float(text):.5g}"))
    (directory / "results.json").write_text(json.dumps(rounded, indent=1) + "\n")
    (directory / "results.md").write_text(markdown(bench))


def _about(bench: Bench) -> str:
    rounds = bench.plan.rounds
    return (
        f"{datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} cores ({platform.machine()}), Python"
        f" {platform.python_version()}, `{bench.plan.name}` plan in {bench.elapsed_s() / 60:.0f} minutes: medians of"
        f" {rounds.repetitions} interleaved repetitions of {rounds.seconds:g} s after a warm-up, in brackets the"
        " smallest and the largest. Every write is on disk before its answer leaves"
    )


def _targets_table(rows: Sequence[Standing]) -> str:
    lines = ["| target | measured | at least | aim | |", "|---|---:|---:|---:|---|"]
    for row in rows:
        measured = "-" if row.measured is None else f"{row.measured:.3g} {row.unit}"
        lines.append(f"| {row.name} | {measured} | {row.at_least:g} | {row.aim:g} | {row.verdict} |")
    return "\n".join(lines)


def _table(section: Section) -> str:
    """Medians; for the throughput also the spread."""
    present = {figure for result in section.results for figure in result.figures()}
    columns = [figure for figure in COLUMNS if figure in present]
    heads = [COLUMNS[figure][0] for figure in columns]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---:|' * len(columns)}"]
    for result in section.results:
        lines.append(f"| {result.name} | {' | '.join(_cell(result, figure) for figure in columns)} |")
    return "\n".join([*lines, "", *section.notes]).rstrip()


def _cell(result: Result, figure: str) -> str:
    if figure not in result.figures():
        return ""
    form = COLUMNS[figure][1]
    text = format(result.median(figure), form)
    if figure != SPREAD_OF or len(result.samples) == 1:
        return text
    low, high = result.spread(figure)
    return f"{text} ({low:{form}} - {high:{form}})"
