"""What a run leaves: figures as JSON for programs and as a Markdown table for people."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.harness import Result


def table(results: Sequence[Result]) -> str:
    """A Markdown table of medians, with the spread of the throughput."""
    lines = [
        "| subject | ops/s (median) | min - max | p50 ms | p99 ms |",
        "|---|---:|---:|---:|---:|",
    ]
    for result in results:
        low, high = result.spread(lambda s: s.ops_per_s)
        lines.append(
            f"| {result.name} | {result.median(lambda s: s.ops_per_s):,.0f} | {low:,.0f} - {high:,.0f}"
            f" | {result.median(lambda s: s.p50_ms):.2f} | {result.median(lambda s: s.p99_ms):.2f} |"
        )
    return "\n".join(lines) + "\n"


def write(results: Sequence[Result], directory: Path) -> str:
    """Write ``results.json`` and ``results.md`` into ``directory``; returns the Markdown."""
    directory.mkdir(parents=True, exist_ok=True)
    about = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    figures = {result.name: [asdict(sample) for sample in result.samples] for result in results}
    (directory / "results.json").write_text(json.dumps({"about": about, "figures": figures}, indent=1) + "\n")
    text = table(results)
    (directory / "results.md").write_text(text)
    return text
