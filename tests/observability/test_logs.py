"""The log: every event is one line of JSON, and no key or payload shows unless it is asked for."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from idemactor.core.keys import Identity
from idemactor.observability.logs import PAYLOAD_CHARS_MAX, ROOT, Redact, configure, log_event

LOGGER = logging.getLogger("idemactor.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    logger = logging.getLogger(ROOT)
    before = logger.handlers[:], logger.level, logger.propagate
    stream = io.StringIO()
    configure("info", stream=stream)
    yield stream
    logger.handlers[:], logger.level, logger.propagate = before


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line(stream: io.StringIO) -> None:
    log_event(LOGGER, logging.INFO, "shard_opened", shard=3, took_ms=1.5, reason=None, text="a\nb\u2028\x1b[1m")
    raw = stream.getvalue()
    assert raw.isascii()
    assert raw.count("\n") == 1
    (line,) = lines(stream)
    at = line.pop("at")
    assert isinstance(at, str)
    assert at[10] == "T"
    assert at.endswith("Z")
    assert line == {
        "level": "info",
        "event": "shard_opened",
        "logger": "idemactor.test",
        "shard": 3,
        "took_ms": 1.5,
        "text": "a\nb\u2028\x1b[1m",
    }


def test_events_below_the_level_are_left_out(stream: io.StringIO) -> None:
    log_event(LOGGER, logging.DEBUG, "detail")
    log_event(LOGGER, logging.WARNING, "trouble")
    assert [line["event"] for line in lines(stream)] == ["trouble"]


def test_configuring_again_replaces(stream: io.StringIO) -> None:
    second = io.StringIO()
    configure("error", stream=second)
    log_event(LOGGER, logging.WARNING, "trouble")
    log_event(LOGGER, logging.ERROR, "disaster")
    assert stream.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["disaster"]


def test_an_event_is_no_format_string(stream: io.StringIO) -> None:
    log_event(LOGGER, logging.INFO, "100%s", percent=1)
    assert lines(stream)[0]["event"] == "100%s"


def test_a_field_hides_no_member_and_any_value_can_be_written(stream: io.StringIO) -> None:
    log_event(LOGGER, logging.INFO, "odd", level=9, message="m", name="n", value=ValueError("v"), raw=b"\xff")
    (line,) = lines(stream)
    assert (line["level"], line["level_"], line["message"], line["name"]) == ("info", 9, "m", "n")
    assert (line["value"], line["raw"]) == ("v", "b'\\xff'")


def test_an_error_brings_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ValueError("unforeseen")
    except ValueError as error:
        log_event(LOGGER, logging.ERROR, "crashed", error=error)
        log_event(LOGGER, logging.ERROR, "noted")
    crashed, noted = lines(stream)
    assert str(crashed["error"]).startswith("Traceback ")
    assert str(crashed["error"]).endswith("ValueError: unforeseen")
    assert "error" not in noted


def test_other_loggers_may_log_plainly(stream: io.StringIO) -> None:
    LOGGER.warning("took %d ms", 7)
    assert lines(stream)[0]["event"] == "took 7 ms"


def test_a_key_shows_as_a_digest_of_its_whole_identity() -> None:
    redact = Redact(show=False, salt=b"salt")
    identities = [
        Identity("acme", "trade", "order-1"),
        Identity("acme", "trade", "order-2"),
        Identity("acme", "payments", "order-1"),
        Identity("other", "trade", "order-1"),
        Identity("acme", "tradeo", "rder-1"),
    ]
    shown = [redact.log_key(identity) for identity in identities]
    assert len(set(shown)) == len(identities)
    assert all(len(digest) == 12 and "order" not in digest for digest in shown)
    assert redact.log_key(identities[0]) == shown[0]
    assert Redact(show=False, salt=b"other").log_key(identities[0]) != shown[0]


def test_keys_and_payloads_show_where_they_are_asked_for() -> None:
    redact = Redact(show=True, salt=b"")
    assert redact.log_key(Identity("acme", "trade", "order-1")) == "acme/trade/order-1"
    assert redact.log_payload(b'{"a":"\xff"}') == '{"a":"\\xff"}'
    assert redact.log_payload(b"x" * 5_000) == "x" * PAYLOAD_CHARS_MAX


def test_a_payload_does_not_show_otherwise() -> None:
    assert Redact(show=False, salt=b"").log_payload(b"secret") is None
