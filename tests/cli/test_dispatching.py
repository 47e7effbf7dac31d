"""Dispatch at the command line: what is sent, what is written, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from idemactor.cli.exits import Exit
from idemactor.client import (
    Acked,
    Cancelled,
    Committed,
    Completed,
    Dispatched,
    EntryRef,
    InFlightError,
    NotFound,
    Operation,
    OperationState,
    OutboxEntry,
    Outcome,
    Postponed,
    Released,
    UncancellableError,
)
from idemactor.errors import Code
from tests.cli.fake_client import FakeClient, install, invoke

LONG_AGO = 1_700_000_000_000
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
ENTRY = OutboxEntry(
    id=ID,
    key="k",
    token=7,
    kind="intent",
    operation_id=ID,
    attempt=2,
    order_key="acct",
    at=LONG_AGO,
    visible_until=LONG_AGO + 1,
    takeover=True,
    content_type="text/plain",
    headers=(("X-A", "b"),),
    body=b"\xff",
)


def operation(state: OperationState, outcome: Outcome | None = None) -> Operation:
    times = (LONG_AGO, None, None, LONG_AGO + 5, None, None)
    return Operation(ID, "k", state, 1, *times, "acct", "why", outcome)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeClient:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return install(monkeypatch)


def test_dispatching(client: FakeClient) -> None:
    told = Dispatched(ID, OperationState.QUEUED, repeated=True)
    client.answers = [told, told, told]
    arguments = (
        *("dispatch", "k", "-n", "trade", "--body", "do it", "--content-type", "text/plain", "--header", "X-A: b"),
        *("--order-key", "acct", "--expires-in", "5m", "--ttl", "1d", "--not-before", "5", "--payload", "1"),
    )
    as_json = invoke(*arguments, "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (
        0,
        {"result": "accepted", "proceed": False, "operation_id": ID, "state": "queued", "repeated": True},
    )
    assert client.calls[0] == (
        "dispatch",
        ("trade", "k", b"do it"),
        {
            "content_type": "text/plain",
            "headers": (("X-A", "b"),),
            "order_key": "acct",
            "expires_in_ms": 300_000,
            "ttl_ms": 86_400_000,
            "not_before": 5,
            "payload_json": "1",
        },
    )
    assert invoke(*arguments, "--quiet").stdout == f"{ID}\n"
    assert invoke(*arguments).stdout.splitlines() == [
        "dispatched  k (repeated: it was handed over before)",
        f"operation   {ID}",
        "state       queued",
    ]


def test_a_whole_intent_comes_from_a_file(client: FakeClient, tmp_path: Path) -> None:
    client.answers = [Dispatched(ID, OperationState.QUEUED, repeated=False)] * 2
    file = tmp_path / "intent.json"
    file.write_text('{"content_type": "text/plain", "body_b64": "/w==", "headers": {"X-A": "b"}}')
    assert invoke("dispatch", "k", "--intent-file", str(file)).exit_code == 0
    assert invoke("dispatch", "k", "--intent-file", "-", stdin=b'{"body": "a", "headers": [["x", "y"]]}').exit_code == 0
    assert [call[1:] for call in client.calls] == [
        (("default", "k", b"\xff"), {"content_type": "text/plain", "headers": (("X-A", "b"),)}),
        (("default", "k", b"a"), {"headers": (("x", "y"),)}),
    ]
    for text in ("[]", "no", '{"more": 1}', '{"body": 1}', '{"body": "a", "body_b64": ""}', '{"headers": [1]}'):
        file.write_text(text)
        assert invoke("dispatch", "k", "--intent-file", str(file)).exit_code == Exit.USAGE, text
    file.write_text("{}")
    assert invoke("dispatch", "k", "--intent-file", str(file), "--body", "a").exit_code == Exit.USAGE
    assert len(client.calls) == 2


def test_what_was_done_otherwise_is_completed(client: FakeClient) -> None:
    client.answers = [Completed(ID, LONG_AGO, LONG_AGO + 1, None, rejected=False)]
    assert invoke("dispatch", "k", "--body", "a").exit_code == Exit.COMPLETED


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (OperationState.QUEUED, Exit.IN_FLIGHT),
        (OperationState.DELIVERING, Exit.IN_FLIGHT),
        (OperationState.SUCCEEDED, Exit.DONE),
        (OperationState.FAILED, Exit.NOT_DONE),
        (OperationState.IN_DOUBT, Exit.IN_DOUBT),
        (OperationState.EXPIRED, Exit.NOT_DONE),
        (OperationState.CANCELLED, Exit.NOT_DONE),
        (OperationState.RELEASED, Exit.NOT_DONE),
    ],
)
def test_how_an_operation_stands(client: FakeClient, state: OperationState, code: Exit) -> None:
    found = operation(state, Outcome(200, (), b"\xff"))
    client.answers = [found, found, found]
    as_json = invoke("operation", ID, "--wait=5s", "--json")
    told = json.loads(as_json.stdout)
    assert (as_json.exit_code, told["result"], told["state"], told["operation_id"]) == (code, "found", state.value, ID)
    assert told["outcome"] == told["operation"]["outcome"] == {"status": 200, "headers": [], "body_b64": "/w=="}
    assert client.calls[0] == ("operation", ("default", ID), {"wait_ms": 5_000})
    as_text = invoke("operation", ID, "--wait")
    assert as_text.exit_code == code
    assert ["state", state.value] in [line.split() for line in as_text.stdout.splitlines()]
    assert client.calls[1][2] == {"wait_ms": 60_000}
    body = invoke("operation", ID, "--body")
    assert (body.exit_code, body.stdout_bytes) == (code, b"\xff")
    assert invoke("operation", ID, "--body", "--json").exit_code == Exit.USAGE


def test_cancelling(client: FakeClient) -> None:
    client.answers = [
        Cancelled(repeated=False),
        Cancelled(repeated=True),
        UncancellableError(Code.UNCANCELLABLE, "D.", state="in_doubt"),
        UncancellableError(Code.UNCANCELLABLE, "D.", state="in_doubt"),
        NotFound(Code.NOT_FOUND, "D."),
    ]
    assert invoke("cancel", ID).stdout == f"cancelled  {ID}\n"
    assert json.loads(invoke("cancel", ID, "--json").stdout) == {"result": "cancelled", "repeated": True}
    late = invoke("cancel", ID)
    assert (late.exit_code, late.stderr) == (Exit.UNCANCELLABLE, "idemactor: too late to cancel: it is in doubt\n")
    assert json.loads(invoke("cancel", ID, "--json").stdout) == {
        "result": "uncancellable",
        "code": "IDEMPOTENCY_UNCANCELLABLE",
        "state": "in_doubt",
    }
    assert invoke("cancel", ID).exit_code == Exit.UNKNOWN


def test_fetching(client: FakeClient) -> None:
    client.answers = [(ENTRY,), (ENTRY,), ()]
    arguments = ("outbox", "poll", "--max", "5", "--wait", "--visibility", "5m", "--holder", "me")
    told = json.loads(invoke(*arguments, "--json").stdout)
    assert told == {
        "entries": [
            {
                "id": ID,
                "key": "k",
                "token": 7,
                "kind": "intent",
                "operation_id": ID,
                "attempt": 2,
                "order_key": "acct",
                "at": LONG_AGO,
                "visible_until": LONG_AGO + 1,
                "takeover": True,
                "content_type": "text/plain",
                "headers": [["X-A", "b"]],
                "body_b64": "/w==",
            }
        ]
    }
    asked = {"max_entries": 5, "wait_ms": 60_000, "visibility_ms": 300_000, "holder": "me"}
    assert client.calls[0] == ("poll", ("default",), asked)
    [head, row] = invoke(*arguments).stdout.splitlines()
    assert head.split()[:5] == ["ID", "KIND", "KEY", "TOKEN", "ATTEMPT"]
    assert row.split()[:5] == [ID, "intent", "k", "7", "2"]
    assert row.endswith("takeover; order key acct")
    nothing = invoke("outbox", "poll")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "idemactor: no entries\n")


@pytest.mark.parametrize(
    ("arguments", "result", "asked", "members", "said"),
    [
        (
            ("ack", "--status", "201", "--ttl", "5"),
            Committed(LONG_AGO, repeated=True),
            {"outcome": Outcome(201), "ttl_ms": 5},
            {"result": "committed", "expires_at": LONG_AGO, "repeated": True},
            f"acknowledged  {ID} (repeated)",
        ),
        (("ack",), Acked(repeated=False), {}, {"result": "acknowledged", "repeated": False}, f"acknowledged  {ID}"),
        (
            ("nack", "--delay", "30s", "--reason", "no"),
            Postponed(LONG_AGO),
            {"delay_ms": 30_000, "reason": "no", "failed": False},
            {"result": "postponed", "due_at": LONG_AGO},
            f"given back   {ID}",
        ),
        (
            ("nack", "--failed", "--status", "422"),
            Committed(LONG_AGO, repeated=False),
            {"failed": True, "outcome": Outcome(422)},
            {"result": "committed", "expires_at": LONG_AGO, "repeated": False},
            f"failed  {ID}",
        ),
        (
            ("nack", "--failed"),
            Released(repeated=False),
            {"failed": True},
            {"result": "released", "repeated": False},
            f"failed  {ID}",
        ),
    ],
)
def test_acknowledging(
    client: FakeClient, arguments: tuple[str, ...], result: object, asked: dict[str, Any], members: object, said: str
) -> None:
    name, *options = arguments
    client.answers = [result, result]
    as_json = invoke("outbox", name, ID, "k", "7", *options, "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (0, members)
    assert client.calls == [(name, ("default", EntryRef(ID, "k", 7)), asked)]
    assert invoke("outbox", name, ID, "k", "7", *options).stdout.splitlines()[0] == said


def test_a_key_that_is_dispatched_is_in_flight_without_a_lease(client: FakeClient) -> None:
    client.answers = [
        InFlightError(
            Code.IN_FLIGHT, "", attempt=0, holder=None, reserved_at=1, lease_expires_at=None, retry_after_ms=1_000
        )
    ]
    told = invoke("reserve", "k")
    assert told.exit_code == Exit.IN_FLIGHT
    assert "and waits to be delivered" in told.stderr


def test_records_show_what_was_dispatched(client: FakeClient) -> None:
    record = {
        "key": "k",
        "state": "in_doubt",
        "attempt": 1,
        "token": 7,
        "holder": None,
        "reserved_at": LONG_AGO,
        "lease_expires_at": LONG_AGO,
        "expires_at": None,
        "contested": False,
        "reason": "no answer",
        "dispatch": {"state": "in_doubt", "due_at": None, "deliver_until": LONG_AGO, "order_key": None},
    }
    client.answers = [{"records": [record], "next": None}] * 2
    row = invoke("records", "--state", "in_doubt").stdout.splitlines()[1]
    assert row.endswith("dispatched: in doubt; no answer")
    told = json.loads(invoke("records", "--state", "in_doubt", "--json").stdout)
    assert told["records"][0]["dispatch"] == record["dispatch"]
