"""What operators do leaves a line: who, what, and what came of it; never a payload."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from idemactor.core.commands import Cancel, Forget, Get, Resolve, Verdict
from idemactor.core.keys import Identity
from idemactor.core.record import Outcome
from idemactor.core.replies import Forgotten, NothingToForget
from idemactor.errors import RequestError, StartError
from idemactor.observability.audit import Audit
from idemactor.observability.logs import Redact
from idemactor.server import dispatching, operations
from idemactor.server.audited import audited
from idemactor.server.backlog import Hold
from idemactor.server.sinks import Replies
from idemactor.shard.mailbox import Envelope
from idemactor.wire.requests import Dialect
from tests.server.rig import TOKENS, running

KEY = Identity("acme", "trade", "key")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture(name="audit")
def _audit(path: Path) -> Audit:
    return Audit(path, Redact(False, b""))


def test_an_operators_command_leaves_a_line_and_its_answer_goes_on(path: Path, audit: Audit) -> None:
    replies = Replies(2)
    forget = audited(audit, "night-shift", Envelope(Forget(KEY, force=True), replies, 0))
    secret = Outcome(200, (), b"secret")
    resolve = audited(audit, "night-shift", Envelope(Resolve(KEY, 7, Verdict.COMMITTED, secret), replies, 1))
    forget.sink.deliver([(0, Forgotten())])
    resolve.sink.deliver([(1, NothingToForget())])
    assert replies.complete
    first, second = lines(path)
    assert first.pop("at").endswith("Z")
    where = {"tenant": "acme", "namespace": "trade", "key": "key"}
    assert first == {"who": "night-shift", "op": "forget", **where, "force": True, "result": "forgotten"}
    assert (second["op"], second["verdict"], second["token"]) == ("resolve", "committed", 7)
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_anybody_may_ask_leaves_none(audit: Audit) -> None:
    replies = Replies(1)
    envelope = Envelope(Get(KEY), replies, 0)
    assert audited(audit, "somebody", envelope).sink is replies


async def test_over_a_door_it_is_the_tokens_name(path: Path, audit: Audit, mock_clock: trio.testing.MockClock) -> None:
    async with running(mock_clock, tokens=TOKENS) as rig:
        rig.context.audit = audit
        principal = rig.context.authenticator.authenticate("operator-token")
        assert principal is not None
        await operations.carry_out(rig.context, [Forget(KEY)], trio.Event(), operations.Asked(principal.who))
        (line,) = lines(path)
        assert (line["who"], line["op"], line["key"]) == ("acme-operator", "forget", "key")
        scope = rig.context.authenticator.scope(principal, "trade", "acknowledge")
        ask = operations.acknowledge(rig.context, scope, {"id": "0-1"}, Dialect.JSON)
        with pytest.raises(RequestError):
            await ask(Hold(rig.context.backlog, Dialect.JSON))
        assert [line["op"] for line in lines(path)] == ["forget", "acknowledge"]
        assert lines(path)[1]["result"].startswith("IDEMPOTENCY_")


async def test_in_a_batch_it_is_the_tokens_name_and_others_leave_none(
    path: Path, audit: Audit, mock_clock: trio.testing.MockClock
) -> None:
    async with running(mock_clock, tokens=TOKENS) as rig:
        rig.context.audit = audit
        operator, caller = (rig.context.authenticator.authenticate(f"{who}-token") for who in ("operator", "caller"))
        resolve = {"op": "resolve", "namespace": "trade", "key": "held", "token": 7, "verdict": "released"}
        reserve = {"op": "reserve", "namespace": "trade", "key": "held"}
        for principal in (operator, caller):
            for ops in ([resolve, reserve], [reserve]):
                batch = operations.Batch.read(rig.context, principal, {"ops": ops}, Dialect.JSON)
                replies = Replies(len(batch.commands))
                rig.context.router.route(batch.envelopes(rig.context, replies))
                await replies.wait()
        (line,) = lines(path)
        assert (line["who"], line["op"], line["key"]) == ("acme-operator", "resolve", "held")


async def test_what_was_dispatched_and_an_operator_takes_back(
    path: Path, audit: Audit, mock_clock: trio.testing.MockClock
) -> None:
    cancelled = Cancel(KEY, "some-operation")
    async with running(mock_clock, tokens=TOKENS) as rig:
        rig.context.audit = audit
        await operations.carry_out(rig.context, [cancelled], trio.Event(), operations.Asked("night-shift"))
        await operations.carry_out(rig.context, [cancelled], trio.Event())
    (line,) = lines(path)
    assert (line["who"], line["op"], line["operation_id"]) == ("night-shift", "cancel", "some-operation")
    assert line["result"] == "IDEMPOTENCY_UNKNOWN_KEY"


async def test_an_operator_who_takes_back_what_there_is_not_leaves_a_line(
    path: Path, audit: Audit, mock_clock: trio.testing.MockClock
) -> None:
    unknown = "0190f8f0-0000-7000-8000-000000000000"
    async with running(mock_clock, tokens=TOKENS) as rig:
        rig.context.audit = audit
        for who in ("operator", "caller"):
            principal = rig.context.authenticator.authenticate(f"{who}-token")
            scope = rig.context.authenticator.scope(principal, "trade", "cancel")
            with pytest.raises(RequestError):
                await dispatching.cancel(rig.context, scope, unknown, trio.Event())
    (line,) = lines(path)
    line.pop("at")
    assert line == {
        "who": "acme-operator",
        "op": "cancel",
        "tenant": "acme",
        "namespace": "trade",
        "operation_id": unknown,
        "result": "IDEMPOTENCY_NOT_FOUND",
    }


def test_a_file_that_was_moved_away_is_made_anew(path: Path, audit: Audit) -> None:
    audit.happened("a", "forget", "forgotten", KEY)
    path.rename(path.with_suffix(".1"))
    audit.happened("b", "forget", "forgotten", KEY)
    assert [line["who"] for line in lines(path)] == ["b"]


def test_without_a_file_it_is_an_event_of_the_log_and_the_key_a_digest(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("idemactor").propagate = True
    with caplog.at_level(logging.WARNING, "idemactor"):
        Audit(None, Redact(False, b"salt")).happened("a", "forget", "forgotten", KEY)
    # Whoever set logging up before may have it come by twice.
    (record,) = set(caplog.records)
    assert record.getMessage() == "audit"
    fields = record.__dict__["idemactor_fields"]
    assert (fields["who"], fields["op"], fields["tenant"]) == ("a", "forget", "acme")
    assert fields["key"] != "key"


def test_a_file_that_cannot_be_written_is_refused_at_start_and_told_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("idemactor").propagate = True
    audit = Audit(tmp_path / "nowhere" / "audit", Redact(False, b""))
    with pytest.raises(StartError, match="audit_file"):
        audit.prove_writable()
    with caplog.at_level(logging.WARNING, "idemactor"):
        audit.happened("a", "forget", "forgotten", KEY)
    assert [record.getMessage() for record in caplog.records] == ["audit_failed", "audit"]


def test_what_root_made_first_is_the_directorys_owners(
    path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that root ran before the server: the server's user has to be able to go on writing."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given.append((user, group)))
    audit.happened("root", "restore", "done")
    audit.happened("root", "restore", "done")
    owner = path.parent.stat()
    assert given == [(owner.st_uid, owner.st_gid)]


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "read pipe", "second name"])
def test_what_is_no_file_of_its_own_is_not_written(path: Path, audit: Audit, kind: str) -> None:
    """Whoever may write into the directory would choose what is written, or that nothing goes on."""
    target = path.with_name("target")
    readers: list[int] = []
    if "pipe" in kind:
        os.mkfifo(path)
        readers += [os.open(path, os.O_RDONLY | os.O_NONBLOCK)] if kind == "read pipe" else []
    elif kind == "second name":
        target.touch()
        os.link(target, path)
    else:
        target.write_bytes(b"") if kind == "link" else None
        path.symlink_to(target)
    with pytest.raises(StartError, match=f"{path} cannot be written: it is a link, a pipe, or has a second name"):
        audit.prove_writable()
    audit.happened("root", "restore", "done")
    assert not target.exists() or target.read_bytes() == b""
    for reader in readers:
        os.close(reader)
