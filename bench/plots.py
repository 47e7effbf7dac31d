"""The pictures of a run, by matplotlib: medians as bars with their spread, and latency over arrival rate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.harness import Result, Section

SIZE_INCHES: Final = (8.0, 4.5)
THROUGHPUT: Final = "throughput.svg"
"""The one that the README shows."""

_GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "RPC,\none caller": {"idemactor": "rpc/new/1x1", "Redis": "redis/new/1x1", "PostgreSQL": "postgres/new/1x1"},
    "RPC,\n32 callers": {"idemactor": "rpc/new/32x1", "Redis": "redis/new/32x1", "PostgreSQL": "postgres/new/32x1"},
    "RPC,\n8 with 64": {"idemactor": "rpc/new/8x64", "Redis": "redis/new/8x64", "PostgreSQL": "postgres/new/8x64"},
    "HTTP,\n32 callers": {"idemactor": "http/new/32x1", "Durable Object": "workerd/new/32x1"},
    "Python,\n32 tasks": {
        "idemactor": "service/idemactor/32",
        "Redis": "service/redis/32",
        "PostgreSQL": "service/postgres/32",
    },
}
_COLOURS: Final = {"idemactor": "#0b6e4f", "Redis": "#c0392b", "PostgreSQL": "#336791", "Durable Object": "#f38020"}
_OPEN: Final = {
    "rpc": ("idemactor, RPC", "#0b6e4f"),
    "http": ("idemactor, HTTP", "#5fa777"),
    "resp": ("Redis", "#c0392b"),
}


def draw(sections: list[Section], directory: Path) -> None:
    """Write the SVGs into ``directory``."""
    results = {result.id: result for section in sections for result in section.results if result.samples}
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "idemactor"
    # Text stays text: a third of the size, and it can be searched.
    matplotlib.rcParams["svg.fonttype"] = "none"
    _throughput(results, directory / THROUGHPUT)
    _open_loop(results, directory / "open-loop.svg")


def _throughput(results: Mapping[str, Result], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=SIZE_INCHES)
    at, ticks, labels = 0.0, [], []
    for label, bars in _GROUPS.items():
        there = [(who, results[subject]) for who, subject in bars.items() if subject in results]
        for offset, (who, result) in enumerate(there):
            _bar(axes, at + offset, who, result)
        if there:
            ticks.append(at + (len(there) - 1) / 2)
            labels.append(label)
            at += len(there) + 1
    axes.set_xticks(ticks, labels)
    axes.set_yscale("log")
    axes.set_ylabel("durable operations a second")
    axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    unique = dict(zip(names, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    _save(figure, path)


def _bar(axes: Any, at: float, who: str, result: Result) -> None:
    median = result.median("ops_per_s")
    low, high = result.spread("ops_per_s")
    errors = [[median - low], [high - median]]
    axes.bar(at, median, 0.9, yerr=errors, color=_COLOURS[who], label=who, error_kw={"lw": 1})
    axes.annotate(f"{median:,.0f}", (at, high), (0, 3), textcoords="offset points", ha="center", fontsize=7)


def _open_loop(results: Mapping[str, Result], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=SIZE_INCHES)
    for protocol, (says, colour) in _OPEN.items():
        found = [result for name, result in results.items() if name.startswith(f"open/{protocol}/")]
        rates = [result.median("offered_per_s") for result in found]
        for percentile, style in (("p50_ms", "-"), ("p99_ms", "--")):
            label = f"{says}, {percentile.removesuffix('_ms')}"
            values = [result.median(percentile) for result in found]
            axes.plot(rates, values, style, color=colour, marker="o", ms=3, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("calls that arrive in a second")
    axes.set_ylabel("latency, ms")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
