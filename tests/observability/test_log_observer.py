"""What is logged of what goes wrong: why in words for what a disk refuses, a traceback for what nobody foresaw."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from idemactor.errors import StorageError
from idemactor.observability import logs
from idemactor.observability.log_observer import LogObserver


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    yield stream
    logs.configure("info")


def test_a_refused_write_says_why_and_shows_no_traceback(log: io.StringIO) -> None:
    error = StorageError("failed")
    error.__cause__ = OSError("the disk is full")
    LogObserver().batch_failed(2, 7, error)
    line = json.loads(log.getvalue())
    assert (line["event"], line["shard"], line["commands"]) == ("batch_failed", 2, 7)
    assert line["what"] == "failed: the disk is full"
    assert "error" not in line


def test_what_nobody_foresaw_keeps_its_traceback(log: io.StringIO) -> None:
    LogObserver().quarantined(1, KeyError("x"), 100)
    line = json.loads(log.getvalue())
    assert (line["event"], line["retry_ms"]) == ("shard_quarantined", 100)
    assert "KeyError" in line["error"]


def test_what_clients_do_is_not_worth_a_line(log: io.StringIO) -> None:
    LogObserver().connection_failed("rpc", ValueError("garbage"))
    assert log.getvalue() == ""


def test_a_forged_request_is_logged_by_its_source(log: io.StringIO) -> None:
    LogObserver().forged("github")
    line = json.loads(log.getvalue())
    assert (line["level"], line["event"], line["source"]) == ("info", "signature_refused", "github")


def test_a_destination_that_is_down_or_well_again_is_logged_and_its_probes_are_not(log: io.StringIO) -> None:
    for state in ("open", "half_open", "open", "half_open", "closed"):
        LogObserver().breaker_changed("orders", state)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["level"], line["event"], line["state"]) for line in lines] == [
        ("warning", "destination_breaker", "open"),
        ("warning", "destination_breaker", "open"),
        ("warning", "destination_breaker", "closed"),
    ]
