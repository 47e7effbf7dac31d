"""A whole run of the harness, as small as it gets and without the peers, so that it cannot rot unseen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import SECTIONS, run, scratch
from bench.harness import Result
from bench.plan import TINY, Bench

NEEDS_NO_PEER = (
    "HTTP, one call",
    "the decision itself",
    "expiry storm, callers' p99",
    "a single alarm step",
    "dispatch, from the call to its delivery",
)
"""Targets that every run measures, whatever is installed and however few keys it has."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def bench(results: Path) -> Bench:
    with scratch() as folder:
        return run(TINY, folder, list(SECTIONS), results)


def _all(bench: Bench) -> dict[str, Result]:
    return {result.id: result for section in bench.sections for result in section.results}


def test_every_section_measured_something(bench: Bench) -> None:
    assert bench.missing == {}
    assert [section.id for section in bench.sections] == list(SECTIONS)
    for name, result in _all(bench).items():
        assert len(result.samples) == 1, name
        assert all(value >= 0 for value in result.samples[0].values()), name
        if "ops_per_s" in result.figures():
            assert result.median("ops_per_s") > 0, name


def test_the_storm_was_over_and_every_key_gone(bench: Bench) -> None:
    storm = _all(bench)["expiry/storm"]
    assert storm.median("left") == 0
    assert storm.median("p99_ms") > 0


def test_results_are_written_for_programs_and_for_people(bench: Bench, results: Path) -> None:
    figures = json.loads((results / "results.json").read_text())
    assert figures["about"]["plan"] == "tiny"
    assert len(figures["sections"]) == len(bench.sections)
    for target in figures["targets"]:
        measured = target["name"].startswith(NEEDS_NO_PEER)
        assert (target["measured"] is not None) == measured, target["name"]
    text = (results / "results.md").read_text()
    assert all(f"### {section.title}" in text for section in bench.sections)
