"""What is logged of what goes wrong: why in words for what a disk refuses, a traceback for what nobody foresaw."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from idemactor.core.keys import Identity
from idemactor.core.trouble import Trouble, TroubleKind
from idemactor.errors import StorageError
from idemactor.observability import logs
from idemactor.observability.log_observer import TROUBLE_LINES_MAX, TROUBLE_WINDOW_S, LogObserver
from idemactor.observability.logs import Redact

HIDDEN = Redact(False, b"salt")
IDENTITY = Identity("acme", "trade", "order-17")


def trouble(kind: TroubleKind = TroubleKind.LAPSED, **changes: Any) -> Trouble:
    fields: dict[str, Any] = {"operation_id": "op-1", "attempt": 2, "holder": "worker-3", "since": 1_000, "at": 61_000}
    return Trouble(kind, IDENTITY, **(fields | changes))


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    yield stream
    logs.configure("info")


def test_a_refused_write_says_why_and_shows_no_traceback(log: io.StringIO) -> None:
    error = StorageError("failed")
    error.__cause__ = OSError("the disk is full")
    LogObserver(HIDDEN).batch_failed(2, 7, error)
    line = json.loads(log.getvalue())
    assert (line["event"], line["shard"], line["commands"]) == ("batch_failed", 2, 7)
    assert line["what"] == "failed: the disk is full"
    assert "error" not in line


def test_what_nobody_foresaw_keeps_its_traceback(log: io.StringIO) -> None:
    LogObserver(HIDDEN).quarantined(1, KeyError("x"), 100)
    line = json.loads(log.getvalue())
    assert (line["event"], line["retry_ms"]) == ("shard_quarantined", 100)
    assert "KeyError" in line["error"]


def test_what_clients_do_is_not_worth_a_line(log: io.StringIO) -> None:
    LogObserver(HIDDEN).connection_failed("rpc", ValueError("garbage"))
    assert log.getvalue() == ""


def test_a_forged_request_is_logged_by_its_source(log: io.StringIO) -> None:
    LogObserver(HIDDEN).forged("github")
    line = json.loads(log.getvalue())
    assert (line["level"], line["event"], line["source"]) == ("info", "signature_refused", "github")


def test_a_destination_that_is_down_or_well_again_is_logged_and_its_probes_are_not(log: io.StringIO) -> None:
    for state in ("open", "half_open", "open", "half_open", "closed"):
        LogObserver(HIDDEN).breaker_changed("orders", state)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["level"], line["event"], line["state"]) for line in lines] == [
        ("warning", "destination_breaker", "open"),
        ("warning", "destination_breaker", "open"),
        ("warning", "destination_breaker", "closed"),
    ]


def test_a_trouble_says_what_is_stuck_for_how_long_and_who_holds_it(log: io.StringIO) -> None:
    LogObserver(HIDDEN).troubled(3, [trouble(reason="the card is 4111")], 0)
    line = json.loads(log.getvalue())
    assert (line["event"], line["level"], line["shard"]) == ("attempt_lapsed", "warning", 3)
    assert (line["tenant"], line["namespace"], line["key"]) == ("acme", "trade", HIDDEN.log_key(IDENTITY))
    assert (line["operation_id"], line["attempt"], line["holder"]) == ("op-1", 2, "worker-3")
    assert (line["since"], line["for_ms"]) == (1_000, 60_000)
    assert "order-17" not in log.getvalue()
    assert "4111" not in log.getvalue()


def test_a_key_and_what_its_holder_said_show_where_that_is_asked_for(log: io.StringIO) -> None:
    LogObserver(Redact(True, b"")).troubled(0, [trouble(TroubleKind.IN_DOUBT, reason="no answer")], 0)
    line = json.loads(log.getvalue())
    assert (line["event"], line["key"], line["reason"]) == ("attempt_in_doubt", "acme/trade/order-17", "no answer")


def test_a_stuck_intent_names_its_destination_and_the_latest_answer(log: io.StringIO) -> None:
    observer = LogObserver(HIDDEN, {"trade": "https://exchange.test"})
    observer.troubled(0, [trouble(TroubleKind.INTENT_STUCK, holder="relay 1", reason="503" * 999, due_at=70_000)], 0)
    line = json.loads(log.getvalue())
    assert (line["event"], line["destination"], line["attempt"]) == ("intent_stuck", "https://exchange.test", 2)
    assert (line["reason"], line["due_at"]) == (("503" * 999)[:200], 70_000)


def test_a_storm_of_troubles_is_counted(log: io.StringIO) -> None:
    now = 0.0
    observer = LogObserver(HIDDEN, clock=lambda: now)
    observer.troubled(0, [trouble()] * (TROUBLE_LINES_MAX + 7), 5)
    observer.troubled(0, [trouble(TroubleKind.TAKEN_OVER, new_holder="worker-4")], 0)
    now += TROUBLE_WINDOW_S
    observer.troubled(0, [trouble()], 0)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    events = [line["event"] for line in lines]
    assert events[:TROUBLE_LINES_MAX] == ["attempt_lapsed"] * TROUBLE_LINES_MAX
    assert events[TROUBLE_LINES_MAX:] == [
        "troubles_left_out",
        "troubles_left_out",
        "attempt_taken_over",
        "troubles_left_out",
        "attempt_lapsed",
    ]
    at_once, beyond, _, afterwards, _ = lines[TROUBLE_LINES_MAX:]
    assert (at_once["of"], at_once["for_s"]) == ("attempt_lapsed", TROUBLE_WINDOW_S)
    assert (beyond["shard"], beyond["left_out"]) == (0, 5)
    assert (afterwards["of"], afterwards["left_out"]) == ("attempt_lapsed", 7)
