"""The commands that ask one question: what they send, what they write, and how they end."""

from __future__ import annotations

import dataclasses
import errno
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from idemactor.cli import main as main_module
from idemactor.cli.exits import MEANINGS, Exit
from idemactor.cli.main import main
from idemactor.client import errors
from idemactor.client.results import (
    Accepted,
    Acknowledged,
    Committed,
    Completed,
    Doubted,
    Extended,
    Forgotten,
    KeyRecord,
    NamespacePolicy,
    Outcome,
    Released,
    Reserved,
    Resolved,
)
from idemactor.core.commands import Verdict
from idemactor.core.limits import FRAME_BYTES_MAX
from idemactor.core.policy import OnDoubt, OnDuplicate, OnLeaseExpiry, OnUnavailable
from idemactor.errors import Code
from tests.cli.fake_client import FakeClient, install, invoke

LONG_AGO = 1_700_000_000_000
RESERVED = Reserved("k", 7, 1, "op-1", LONG_AGO, LONG_AGO + 1, repeated=False)
COMPLETED = Completed("op-1", LONG_AGO, LONG_AGO + 1, Outcome(200, (("a", "b"),), b"done"), rejected=False)
RECORD = KeyRecord(
    *(
        "k",
        "in_doubt",
        2,
        9,
        "op-1",
        "v1:00",
        "me\x1b[2J",
        LONG_AGO,
        LONG_AGO + 1,
        LONG_AGO + 2,
        None,
        None,
        True,
        "why",
    ),
    outcome=None,
)
POLICY = NamespacePolicy(
    lease_ms=300_000,
    ttl_ms=1,
    on_lease_expiry=OnLeaseExpiry.RETRY,
    on_doubt=OnDoubt.HOLD,
    on_duplicate=OnDuplicate.REPLAY,
    on_unavailable=OnUnavailable.CLOSED,
    unavailable_after_ms=2,
    unresolved_ttl_ms=3,
    lease_total_max_ms=4,
    outcome_max_bytes=5,
    records_max=6,
    fingerprint={"required": False, "include": ["/a", "/b"], "exclude": []},
    limits={"key_chars_max": 256},
)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeClient:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return install(monkeypatch)


# ------------------------------------------------------------------------------------------------ what goes, what comes


@pytest.mark.parametrize(
    ("arguments", "result", "asked", "members"),
    [
        (
            [
                *("reserve", "k", "-n", "trade", "--lease", "30s", "--ttl", "1d", "--wait", "1s"),
                *("--holder", "me", "--on-duplicate", "reject", "--request-id", "r", "--payload", '{"a": 1.0}'),
            ],
            RESERVED,
            (
                *("reserve", ("trade", "k")),
                {
                    "lease_ms": 30_000,
                    "ttl_ms": 86_400_000,
                    "wait_ms": 1_000,
                    "holder": "me",
                    "on_duplicate": "reject",
                    "request_id": "r",
                    "payload_json": '{"a": 1.0}',
                },
            ),
            {
                "result": "reserved",
                "proceed": True,
                "key": "k",
                "token": 7,
                "attempt": 1,
                "operation_id": "op-1",
                "reserved_at": LONG_AGO,
                "lease_expires_at": LONG_AGO + 1,
                "takeover": False,
                "repeated": False,
            },
        ),
        (
            ["accept", "k", "--fingerprint", "f", "--window", "5m", "--body", "x"],
            Accepted("op-1", 2, LONG_AGO, repeated=True),
            (
                *("accept", ("default", "k")),
                {"fingerprint": "f", "window_ms": 300_000, "outcome": Outcome(200, (), b"x")},
            ),
            {
                "result": "accepted",
                "proceed": True,
                "operation_id": "op-1",
                "attempt": 2,
                "takeover": True,
                "repeated": True,
                "expires_at": LONG_AGO,
            },
        ),
        (
            ["commit", "k", "7", "--status", "201", "--header", "A: b: c", "--ttl", "5"],
            Committed(LONG_AGO, repeated=False),
            ("commit", ("default", "k", 7), {"outcome": Outcome(201, (("A", "b: c"),)), "ttl_ms": 5}),
            {"result": "committed", "expires_at": LONG_AGO, "repeated": False},
        ),
        (
            ["release", "k", "7", "--reason", "no"],
            Released(repeated=True),
            ("release", ("default", "k", 7), {"reason": "no"}),
            {"result": "released", "repeated": True},
        ),
        (
            ["extend", "k", "7", "30s"],
            Extended(LONG_AGO),
            ("extend", ("default", "k", 7, 30_000), {}),
            {"result": "extended", "lease_expires_at": LONG_AGO},
        ),
        (
            ["doubt", "k", "7"],
            Doubted(repeated=False),
            ("doubt", ("default", "k", 7), {}),
            {"result": "in_doubt", "repeated": False},
        ),
        (
            ["resolve", "k", "7", "committed", "--body", "x"],
            Resolved(Verdict.COMMITTED, repeated=False),
            ("resolve", ("default", "k", 7, "committed"), {"outcome": Outcome(200, (), b"x")}),
            {"result": "committed", "repeated": False},
        ),
        (
            ["get", "--", "-k"],
            RECORD,
            ("get", ("default", "-k"), {}),
            # Only a dispatched record says how its delivery stands.
            {"result": "found", "record": {n: v for n, v in dataclasses.asdict(RECORD).items() if n != "dispatch"}},
        ),
        (
            ["forget", "k", "--force"],
            Forgotten(),
            ("forget", ("default", "k"), {"force": True}),
            {"result": "forgotten"},
        ),
        (["ping"], None, ("ping", (), {}), {"result": "pong"}),
        (
            ["policy", "-n", "trade"],
            POLICY,
            ("policy", ("trade",), {}),
            {"namespace": "trade"} | dataclasses.asdict(POLICY),
        ),
        (
            ["incidents", "--acknowledge", "0-1"],
            Acknowledged(),
            ("acknowledge", ("default", "0-1"), {}),
            {"result": "acknowledged"},
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_command_asks_and_writes_the_answer(
    client: FakeClient, arguments: list[str], result: object, asked: tuple[Any, ...], members: Mapping[str, object]
) -> None:
    client.answers = [result, result]
    as_json = invoke(arguments[0], "--json", *arguments[1:])
    assert (as_json.exit_code, as_json.stderr) == (0, "")
    assert json.loads(as_json.stdout) == members
    as_text = invoke(*arguments)
    assert (as_text.exit_code, as_text.stderr) == (0, "")
    assert as_text.stdout.endswith("\n")
    assert client.calls == [asked, asked]


def test_what_people_read(client: FakeClient) -> None:
    client.answers = [RESERVED, dataclasses.replace(RESERVED, attempt=2, repeated=True), RECORD]
    assert invoke("reserve", "k").stdout.splitlines()[:4] == [
        "reserved    k",
        "token       7",
        "attempt     1",
        "operation   op-1",
    ]
    assert invoke("reserve", "k").stdout.splitlines()[0:3:2] == [
        "reserved    k (repeated)",
        "attempt     2 (takeover: an earlier attempt may already have had its effect)",
    ]
    shown = invoke("get", "k").stdout
    assert "state        in_doubt (contested: see incidents)" in shown
    assert "holder       me\\u001b[2J" in shown


def test_reserve_for_a_shell_writes_the_token_alone(client: FakeClient) -> None:
    client.answers = [RESERVED, COMPLETED]
    assert invoke("reserve", "k", "-q").stdout == "7\n"
    done = invoke("reserve", "k", "-q")
    assert (done.exit_code, done.stdout) == (Exit.COMPLETED, "")


@pytest.mark.parametrize("command", ["reserve", "accept"])
def test_only_proceed_is_exit_code_0(client: FakeClient, command: str) -> None:
    client.answers = [COMPLETED, COMPLETED]
    as_json = invoke(command, "k", "--json")
    assert as_json.exit_code == Exit.COMPLETED
    assert json.loads(as_json.stdout) == {
        "result": "completed",
        "proceed": False,
        "operation_id": "op-1",
        "committed_at": LONG_AGO,
        "expires_at": LONG_AGO + 1,
        "outcome": {"status": 200, "headers": [["a", "b"]], "body": "done"},
    }
    as_text = invoke(command, "k")
    assert as_text.exit_code == Exit.COMPLETED
    assert as_text.stdout.startswith("completed  k (done before: do not do it again)\n")
    assert as_text.stdout.endswith("outcome    200, 4 bytes\nheader     a: b\n\ndone\n")


def test_the_body_of_an_outcome_comes_out_byte_by_byte(client: FakeClient) -> None:
    committed = dataclasses.replace(RECORD, outcome=Outcome(200, (), b"\xff\x00\n\n"))
    client.answers = [committed, committed, dataclasses.replace(RECORD, outcome=Outcome(200, omitted=True)), RECORD]
    assert invoke("get", "k", "--body").stdout_bytes == b"\xff\x00\n\n"
    assert json.loads(invoke("get", "k", "--json").stdout)["record"]["outcome"]["body_b64"] == "/wAKCg=="
    omitted = json.loads(invoke("get", "k", "--json").stdout)["record"]["outcome"]
    assert omitted == {"status": 200, "headers": [], "omitted": True}
    assert invoke("get", "k", "--body").stdout_bytes == b""
    assert invoke("get", "k", "--body", "--json").exit_code == Exit.USAGE


# ------------------------------------------------------------------------------------------------------------- refusals

IN_FLIGHT = errors.InFlightError(
    *(Code.IN_FLIGHT, ""), attempt=1, holder="h\n", reserved_at=1, lease_expires_at=2, retry_after_ms=3
)
CAUSED = errors.Unreachable("no answer from x:1 within 5 ms: connection refused")
CAUSED.__cause__ = ExceptionGroup("all failed", [OSError(111, "Connection refused"), OSError("other")])


@pytest.mark.parametrize(
    ("error", "code", "members", "said"),
    [
        (
            IN_FLIGHT,
            Exit.IN_FLIGHT,
            {
                "result": "in_flight",
                "code": "IDEMPOTENCY_IN_FLIGHT",
                "attempt": 1,
                "holder": "h\n",
                "reserved_at": 1,
                "lease_expires_at": 2,
                "retry_after_ms": 3,
            },
            "in flight: attempt 1 of h\\u000a began ",
        ),
        (
            errors.InDoubtError(
                Code.IN_DOUBT, "", attempt=1, operation_id="op", holder=None, reserved_at=1, reason="r"
            ),
            Exit.IN_DOUBT,
            {
                "result": "in_doubt",
                "code": "IDEMPOTENCY_IN_DOUBT",
                "attempt": 1,
                "operation_id": "op",
                "holder": None,
                "reserved_at": 1,
                "lease_expires_at": None,
                "reason": "r",
            },
            "in doubt: nobody knows whether it happened (attempt 1 of an unnamed holder began ",
        ),
        (
            errors.DuplicateError(Code.DUPLICATE, "", operation_id="op", committed_at=1, expires_at=2),
            Exit.COMPLETED,
            {
                "result": "completed",
                "code": "IDEMPOTENCY_DUPLICATE",
                "operation_id": "op",
                "committed_at": 1,
                "expires_at": 2,
            },
            "completed: it was done before, ",
        ),
        (
            errors.StaleTokenError(Code.STALE_TOKEN, "", attempt=None),
            Exit.STALE,
            {"result": "stale", "code": "IDEMPOTENCY_STALE_TOKEN", "attempt": None},
            "stale: the token is not that of the latest attempt (there is none now)",
        ),
        (
            errors.AlreadyCommittedError(Code.ALREADY_COMMITTED, "", committed_at=1, expires_at=2),
            Exit.ALREADY_COMMITTED,
            {
                "result": "already_committed",
                "code": "IDEMPOTENCY_ALREADY_COMMITTED",
                "committed_at": 1,
                "expires_at": 2,
            },
            "already committed, ",
        ),
        (
            errors.MismatchError(Code.MISMATCH, ""),
            Exit.MISMATCH,
            {"result": "mismatch", "code": "IDEMPOTENCY_MISMATCH"},
            "mismatch: the key stands for another payload",
        ),
        (
            errors.UnknownKeyError(Code.UNKNOWN_KEY, ""),
            Exit.UNKNOWN,
            {"result": "unknown", "code": "IDEMPOTENCY_UNKNOWN_KEY"},
            "unknown: there is no record of this key",
        ),
        (
            errors.ReleasedError(Code.RELEASED, ""),
            Exit.RELEASED,
            {"result": "released", "code": "IDEMPOTENCY_RELEASED"},
            "IDEMPOTENCY_RELEASED: A late repeat",
        ),
        (
            errors.InvalidRequest(Code.INVALID_REQUEST, "a key is text", field="key"),
            Exit.USAGE,
            {"code": "IDEMPOTENCY_INVALID_REQUEST", "detail": "a key is text"},
            "IDEMPOTENCY_INVALID_REQUEST: a key is text",
        ),
        *(
            (kind(code, "D."), exit_code, {"code": code, "detail": "D."}, f"{code}: D")
            for kind, code, exit_code in (
                (errors.UnknownNamespace, Code.UNKNOWN_NAMESPACE, Exit.USAGE),
                (errors.TooLarge, Code.TOO_LARGE, Exit.USAGE),
                (errors.Unauthenticated, Code.UNAUTHENTICATED, Exit.DENIED),
                (errors.BadSignature, Code.BAD_SIGNATURE, Exit.DENIED),
                (errors.Forbidden, Code.FORBIDDEN, Exit.DENIED),
                (errors.QuotaExceeded, Code.QUOTA_EXCEEDED, Exit.QUOTA),
                (errors.NotFound, Code.NOT_FOUND, Exit.UNKNOWN),
                (errors.Refused, "IDEMPOTENCY_OF_TOMORROW", Exit.UNEXPECTED),
            )
        ),
        (
            errors.UnsettledError(Code.UNSETTLED, "D"),
            Exit.UNSETTLED,
            {"code": "IDEMPOTENCY_UNSETTLED", "detail": "D"},
            "pending or in doubt: --force",
        ),
        (
            errors.Unavailable("IDEMPOTENCY_UNAVAILABLE: D"),
            Exit.OUT_OF_SERVICE,
            {"code": "IDEMPOTENCY_UNAVAILABLE", "detail": "IDEMPOTENCY_UNAVAILABLE: D"},
            "IDEMPOTENCY_UNAVAILABLE: D",
        ),
        (
            errors.Overloaded("D"),
            Exit.OUT_OF_SERVICE,
            {"code": "IDEMPOTENCY_OVERLOADED", "detail": "D"},
            "D",
        ),
        (
            CAUSED,
            Exit.OUT_OF_SERVICE,
            {"code": "UNREACHABLE", "detail": "no answer from x:1 within 5 ms: connection refused"},
            "no answer from x:1 within 5 ms: connection refused",
        ),
        (
            errors.Unreachable("no answer from x:1 within 5 ms"),
            Exit.OUT_OF_SERVICE,
            {"code": "UNREACHABLE", "detail": "no answer from x:1 within 5 ms"},
            "no answer from x:1 within 5 ms (is it the RPC door?)",
        ),
        (errors.ServerNotTrusted("T"), Exit.DENIED, {"code": "SERVER_NOT_TRUSTED", "detail": "T"}, "T"),
        (errors.ProtocolViolation("P"), Exit.UNEXPECTED, {"code": "PROTOCOL_VIOLATION", "detail": "P"}, "P"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_refusal_has_its_exit_code_and_one_line(
    client: FakeClient, error: Exception, code: Exit, members: Mapping[str, object], said: str
) -> None:
    client.answers = [error, error, error]
    as_text = invoke("commit", "k", "1")
    assert (as_text.exit_code, as_text.stdout) == (code, "")
    assert as_text.stderr.startswith(f"idemactor: {said}")
    assert as_text.stderr.count("\n") == 1
    as_json = invoke("commit", "k", "1", "--json")
    assert (as_json.exit_code, as_json.stderr) == (code, as_text.stderr)
    assert json.loads(as_json.stdout) == members
    acquiring = invoke("reserve", "k", "--json")
    assert (acquiring.exit_code, json.loads(acquiring.stdout)) == (code, {**members, "proceed": False})


def test_what_nobody_expects_is_no_traceback(client: FakeClient) -> None:
    client.answers = [RuntimeError("a\nbug"), RuntimeError("a bug")]
    result = invoke("get", "k")
    assert (result.exit_code, result.stderr) == (1, "idemactor: unexpected: RuntimeError('a\\nbug')\n")
    as_json = invoke("reserve", "k", "--json")
    assert json.loads(as_json.stdout) == {"code": "UNEXPECTED", "detail": "RuntimeError('a bug')", "proceed": False}


def test_a_reader_who_leaves_is_no_error(client: FakeClient) -> None:
    client.answers = [BrokenPipeError(errno.EPIPE, "Broken pipe")]
    result = invoke("records", "--all")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")


def test_ctrl_c_is_told_as_shells_tell_it(client: FakeClient) -> None:
    client.answers = [KeyboardInterrupt()]
    assert invoke("get", "k").exit_code == 130


# ------------------------------------------------------------------------------------------------------------- listings


def page(method: str, items: list[dict[str, Any]], cursor: str | None) -> dict[str, Any]:
    return {method: items, "next": cursor}


def listed(key: str, **more: object) -> dict[str, Any]:
    found = dataclasses.asdict(dataclasses.replace(RECORD, key=key, holder="me"))
    del found["outcome"]
    return found | more


def asked_of(client: FakeClient) -> list[dict[str, Any]]:
    return [call[1][0].params for call in client.calls]


def test_a_long_reason_is_cut_in_the_list(client: FakeClient) -> None:
    reasons = ["r" * 60, "s" * 61]
    client.answers = [page("records", [listed("k") | {"reason": reason} for reason in reasons], None)]
    lines = invoke("records").stdout.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [reasons[0], "s" * 57 + "..."]


@pytest.mark.parametrize(
    ("arguments", "wait_ms"),
    [(("--wait",), 60_000), (("--wait=1s",), 1_000), (("--wait", "--quiet"), 60_000), ((), 0)],
)
def test_reserve_waits_as_long_as_it_may_where_no_time_is_said(
    client: FakeClient, arguments: tuple[str, ...], wait_ms: int
) -> None:
    client.answers = [RESERVED]
    assert invoke("reserve", "k", *arguments).exit_code == 0
    assert client.calls[0][2]["wait_ms"] == wait_ms


def test_reserve_says_where_wait_stands_without_a_value(client: FakeClient) -> None:
    result = invoke("reserve", "--wait", "order-17")
    assert result.exit_code == Exit.USAGE
    assert "without a value --wait comes after KEY." in result.stderr
    assert client.calls == []


def test_records_in_columns(client: FakeClient) -> None:
    done = listed("done", state="committed", expires_at=LONG_AGO, contested=False, reason=None, token=None)
    client.answers = [page("records", [listed("k"), done], None)]
    result = invoke("records", "--state", "in_doubt", "--older-than", "1h", "--contested")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["KEY", "STATE", "ATTEMPT", "TOKEN", "HOLDER", "RESERVED", "ENDS", "NOTE"]
    assert [line.index("me") for line in lines[1:]] == [lines[0].index("HOLDER")] * 2
    assert lines[1].endswith("contested; why")
    assert lines[2].startswith("done  committed  2        -      me")
    assert asked_of(client) == [
        {"namespace": "default", "state": "in_doubt", "contested": True, "older_than_ms": 3_600_000, "limit": 100}
    ]


def test_a_listing_ends_at_its_limit_and_says_how_to_go_on(client: FakeClient) -> None:
    client.answers = [page("records", [listed("a")] * 1_000, "c1"), page("records", [listed("b")] * 2, "c2")]
    result = invoke("records", "--limit", "1002")
    assert result.stderr == "idemactor: there are more: go on with --cursor c2, or list --all\n"
    assert len(result.stdout.splitlines()) == 1_003
    assert [(asked["limit"], asked.get("cursor")) for asked in asked_of(client)] == [(1_000, None), (2, "c1")]


def test_all_of_a_listing_as_json_is_a_line_a_page(client: FakeClient) -> None:
    pages = [page("records", [listed("a")], "c1"), page("records", [listed("b")], None)]
    client.answers = list(pages)
    result = invoke("records", "--all", "--json", "--cursor", "c0")
    assert [json.loads(line) for line in result.stdout.splitlines()] == pages
    assert [asked["cursor"] for asked in asked_of(client)] == ["c0", "c1"]


def test_an_empty_listing(client: FakeClient) -> None:
    client.answers = [page("incidents", [], None), page("incidents", [], None)]
    result = invoke("incidents")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "idemactor: no incidents\n")
    as_json = invoke("incidents", "--json")
    assert (as_json.stdout, as_json.stderr) == ('{"incidents":[],"next":null}\n', "")


def test_incidents_and_their_late_outcomes(client: FakeClient) -> None:
    incident = {
        "id": "0-1",
        "key": "k",
        "operation_id": "op-1",
        "token": 1,
        "present_token": None,
        "at": LONG_AGO,
        "outcome": {"status": 200, "headers": [], "body": b"\xff"},
    }
    client.answers = [page("incidents", [incident], None), page("incidents", [incident], None)]
    assert json.loads(invoke("incidents", "--json").stdout)["incidents"][0]["outcome"]["body_b64"] == "/w=="
    header, line = invoke("incidents").stdout.splitlines()
    assert header.split() == ["ID", "KEY", "AT", "TOKEN", "PRESENT", "OUTCOME", "OPERATION"]
    assert line.split()[-4:] == ["1", "-", "200", "op-1"]


def test_acknowledging_stops_at_what_is_not_there(client: FakeClient) -> None:
    client.answers = [Acknowledged(), errors.NotFound(Code.NOT_FOUND, "")]
    result = invoke("incidents", "--acknowledge", "0-1", "--acknowledge", "0-2", "--acknowledge", "0-3")
    assert (result.exit_code, result.stdout) == (Exit.UNKNOWN, "acknowledged  0-1\n")


# --------------------------------------------------------------------------------------------------------------- inputs


def test_payloads_and_bodies_from_files_and_standard_input(client: FakeClient, tmp_path: Path) -> None:
    client.answers = [Accepted("op", 1, 1, repeated=False)] * 3
    (tmp_path / "payload.json").write_text('{"q": 0.10}')
    assert (
        invoke("accept", "k", "--payload", f"@{tmp_path}/payload.json", "--body", "-", stdin=b"\xff\n").exit_code == 0
    )
    assert invoke("accept", "k", "--payload", "@-", stdin=b"[]").exit_code == 0
    assert invoke("accept", "k", "--body", "").exit_code == 0
    assert [call[2] for call in client.calls] == [
        {"payload_json": '{"q": 0.10}', "outcome": Outcome(200, (), b"\xff\n")},
        {"payload_json": "[]"},
        {"outcome": Outcome(200, (), b"")},
    ]


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (["reserve", "k", "--payload", "@/nowhere"], b"", "/nowhere: cannot be read: No such file or directory."),
        (["accept", "k", "--payload", "-", "--body", "-"], b"{}", "standard input is taken by another option already."),
        (["accept", "k", "--payload", "-"], b"\xff", "it is not UTF-8, as JSON has to be."),
        (["accept", "k", "--body", "-"], b"x" * (FRAME_BYTES_MAX + 1), f"it is larger than {FRAME_BYTES_MAX} bytes"),
        (["commit", "k", "1", "--header", "nothing"], b"", "'nothing' is no header"),
        (["commit", "k", "1", "--status", "600"], b"", "600 is not in the range"),
        (["commit", "k", "x"], b"", "'x' is not a valid integer"),
        (["reserve", "k", "--lease", "soon"], b"", "'soon': a duration is a number"),
        (["resolve", "k", "1", "maybe"], b"", "'maybe' is not one of 'committed', 'released'"),
        (["records", "--limit", "0"], b"", "0 is not in the range"),
        (["reserve"], b"", "Missing argument 'KEY'"),
        (["run", "--key", "k"], b"", "Missing argument 'COMMAND...'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_arguments_is_a_usage_error(
    client: FakeClient, arguments: list[str], stdin: bytes, said: str
) -> None:
    result = invoke(*arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert said in " ".join(result.stderr.split())
    assert client.calls == []


def test_whom_to_talk_to_comes_from_flags_and_environment(client: FakeClient, tmp_path: Path) -> None:
    client.answers = [None, None]
    (tmp_path / "token").write_text("s3cret\n")
    flags = ["--address", "flag:1", "--token-file", str(tmp_path / "token"), "--timeout", "1s", "--tls"]
    assert invoke("ping", *flags, environment={"IDEMACTOR_ADDRESS": "environment:1"}).exit_code == 0
    assert invoke("ping", environment={"IDEMACTOR_ADDRESS": "environment:1", "IDEMACTOR_TOKEN": "t"}).exit_code == 0
    first, second = client.settings
    assert (first.address, first.token, first.timeout_ms, first.tls) == ("flag:1", "s3cret", 1_000, True)
    assert (second.address, second.token, second.timeout_ms, second.tls) == ("environment:1", "t", 5_000, False)


def test_a_byte_order_mark_is_called_by_its_name(client: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("tls = true\n", encoding="utf-8-sig")
    result = invoke("ping", "--client-config", str(tmp_path / "c.toml"))
    said = f"idemactor: {tmp_path}/c.toml: begins with a byte order mark; save it as UTF-8 without one\n"
    assert (result.exit_code, result.stderr) == (Exit.USAGE, said)
    assert client.calls == []


def test_a_client_file_that_is_wrong_is_one_line(client: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("nonsense = 1\n")
    result = invoke("ping", "--client-config", str(tmp_path / "c.toml"))
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert result.stderr.startswith(f"idemactor: {tmp_path}/c.toml: nonsense: no such setting; ")
    assert client.calls == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ping", "--address", "nowhere"], "'nowhere' is no address: it is host:port, [v6]:port or unix:/path"),
        (["ping", "--tls-ca", "/nowhere.pem"], "the TLS file /nowhere.pem cannot be read: No such file or directory"),
        (
            ["ping", "--tls-cert", "/dev/null", "--tls-key", "/nowhere.key"],
            "the TLS file /nowhere.key cannot be read: No such file or directory",
        ),
        (["ping", "--tls-ca", "/dev/null"], "the TLS file /dev/null cannot be used: NO_CERTIFICATE_OR_CRL_FOUND"),
        (
            ["ping", "--tls-cert", "/dev/null", "--tls-key", "/dev/null"],
            "the TLS files /dev/null and /dev/null cannot be used: [SSL] PEM lib",
        ),
    ],
)
def test_an_address_or_a_certificate_that_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], said: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    result = invoke(*arguments)
    assert (result.exit_code, len(result.stderr.splitlines())) == (Exit.USAGE, 1)
    assert result.stderr.startswith(f"idemactor: {said}")


# ----------------------------------------------------------------------------------------------------------- help pages

TOOLS = ("backup", "restore", "reshard", "reencrypt", "export", "import")
ASKING = [name for name in main_module._COMMANDS if name not in ("serve", "check", "key", "outbox", *TOOLS)]


def command(name: str) -> click.Command:
    assert isinstance(main, click.Group)
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "line"), main_module._COMMANDS.items())
def test_the_list_of_commands_says_what_each_says_of_itself(name: str, line: str) -> None:
    assert command(name).get_short_help_str(100) == line


@pytest.mark.parametrize("name", [*ASKING, "outbox poll", "outbox ack", "outbox nack"])
def test_every_help_page_has_an_example_and_the_exit_codes(name: str) -> None:
    page = invoke(*name.split(), "--help").stdout
    assert f"Example:\n    idemactor {name}" in page or f"idemactor {name}" in page.partition("Example:")[2]
    assert f"Exit codes:\n      0  {MEANINGS[Exit.DONE]}\n" in page
    assert all(option in page for option in ("--address", "--token-file", "--client-config", "--namespace"))


def test_the_help_page_has_every_exit_code_and_the_completion() -> None:
    page = invoke("--help").stdout
    assert all(f"{code.value:>3}  {MEANINGS[code]}\n" in page for code in Exit)
    for line in ("bash_source idemactor)", "zsh_source idemactor)", "fish_source idemactor | source"):
        assert f"_IDEMACTOR_COMPLETE={line}" in page


def test_help_imports_neither_client_nor_server() -> None:
    program = (
        "import sys; from idemactor.cli.main import main\n"
        "try: main(['--help'], prog_name='idemactor')\n"
        "except SystemExit: pass\n"
        "found = sorted(set(sys.modules) & {'trio', 'anyio', 'msgpack', 'apsw', 'quart', 'idemactor.client'})\n"
        "raise SystemExit(f'it imports {found}' if found else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_and_what_they_ask_for(shell: str) -> None:
    script = invoke(environment={"_IDEMACTOR_COMPLETE": f"{shell}_source"})
    assert script.exit_code == 0
    assert f"_IDEMACTOR_COMPLETE={shell}_complete" in script.stdout
    words = {"COMP_WORDS": "idemactor re", "COMP_CWORD": "re" if shell == "fish" else "1"}
    found = invoke(environment={"_IDEMACTOR_COMPLETE": f"{shell}_complete", **words})
    assert all(name in found.stdout for name in ("reserve", "release", "resolve", "records"))
    assert "commit" not in found.stdout


def stuck(**changes: Any) -> dict[str, Any]:
    item = {
        "why": "pending",
        "namespace": "trade",
        "key": "order-17",
        "operation_id": "op-1",
        "attempt": 2,
        "token": 7,
        "holder": "worker\x1b[2J",
        "since": LONG_AGO,
        "for_ms": 3_660_000,
        "lease_expires_at": None,
        "waiting": 0,
        "contested": False,
        "reason": None,
        "destination": None,
        "due_at": None,
        "incident": None,
        "present_token": None,
    }
    return item | changes


def test_what_is_stuck_for_how_long_and_who_holds_it(client: FakeClient) -> None:
    items = [
        stuck(lease_expires_at=1, waiting=3, contested=True),
        stuck(why="undelivered", holder="relay 1", destination="https://exchange.test", due_at=1, reason="x" * 99),
        stuck(why="incident", attempt=None, holder=None, incident="0-1", present_token=9, contested=True),
    ]
    unfetched = [{"namespace": "pay", "entries": 4, "since": 1}]
    told = {"stuck": items, "unfetched": unfetched, "more": True, "silent_shards": [3]}
    client.answers = [told, told]
    result = invoke("stuck", "--older-than", "10m", "--limit", "5")
    head, pending, undelivered, incident = result.stdout.splitlines()
    assert head.split() == ["FOR", "WHY", "NAMESPACE", "KEY", "TOKEN", "ATTEMPT", "HOLDER", "OPERATION", "NOTE"]
    assert pending.split()[:9] == ["1h", "1m", "pending", "trade", "order-17", "7", "2", "worker\\u001b[2J", "op-1"]
    assert "contested; lease ended" in pending
    assert pending.endswith("; 3 wait for it")
    assert "to https://exchange.test; due; xxx" in undelivered
    assert undelivered.endswith("...")
    assert incident.endswith("incident 0-1, token 9 held it then")
    assert "events of pay that nobody fetched: 4" in result.stderr
    assert "there is more" in result.stderr
    assert "shards that did not answer: 3" in result.stderr
    assert result.exit_code == 0
    assert json.loads(invoke("stuck", "--json").stdout) == told
    assert "'older_than_ms': 600000, 'limit': 5" in str(client.calls[0])
    assert "'older_than_ms': 60000, 'limit': 100" in str(client.calls[1])


def test_nothing_is_stuck(client: FakeClient) -> None:
    client.answers = [{"stuck": [], "unfetched": [], "more": False, "silent_shards": []}]
    result = invoke("stuck")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "idemactor: nothing is stuck (for more than 1m)\n"
