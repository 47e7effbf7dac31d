"""What is exported comes back as it was: into a new directory, or beside keys that are there."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from idemactor.core.delivery import OMITTED
from idemactor.core.limits import TOKEN_MAX
from idemactor.core.record import Outcome
from idemactor.errors import StartError, StorageError
from idemactor.storage import importing, rebuilding
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.exporting import export
from idemactor.storage.importing import Conflicts, import_lines
from idemactor.storage.layout import read_meta
from idemactor.storage.lines import BadLine, End
from idemactor.storage.progress import silent
from idemactor.storage.reading import Whole
from idemactor.storage.sqlite import SqliteEngine
from idemactor.storage.tokens import TOKENS_BEFORE_COPIES
from tests.storage.filled import Content, content_of
from tests.storage.samples import NOW, committed, name, operation, pending
from tests.storage.test_backups import Interrupted, interrupt_at
from tests.storage.test_reading import digests
from tests.storage.test_resharding import filled, two_alike

ROUNDS = 8


def exported(path: Path, *, outcomes: bool = True) -> bytes:
    file = io.BytesIO()
    export(path, file.write, silent, outcomes=outcomes)
    return file.getvalue()


def lines_of(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def imported(path: Path, data: bytes, shards: int | None = None) -> importing.Imported:
    return import_lines(path, io.BytesIO(data), silent, shards=shards)


async def small(path: Path, *wholes: Whole, shards: int = 1) -> Path:
    """A directory with these entries; of one shard."""
    with DataDirectory.open(path, shards) as data:
        engine = SqliteEngine(data.engine_path(0), shard=0, shards=shards, threads="never")
        await engine.open()
        batch = Batch(NOW, 100, puts=[whole.entry for whole in wholes])
        assert await engine.commit(batch) is CommitResult.OK
        await engine.close()
    return path


async def test_what_was_exported_comes_back_into_any_number_of_shards(tmp_path: Path) -> None:
    seed = SystemRandom().randrange(2**32)
    for number in range(ROUNDS):
        rng = Random(f"{seed}-{number}")
        filler = await filled(tmp_path / f"data{number}", rng, rng.randrange(1, 4))
        before = digests(tmp_path / f"data{number}")
        data = exported(tmp_path / f"data{number}")
        assert digests(tmp_path / f"data{number}") == before
        shards = rng.choice((None, rng.randrange(1, 6)))
        done = imported(tmp_path / f"new{number}", data, shards)
        content = content_of(tmp_path / f"new{number}")
        assert content.plain() == filler.content.plain(), f"seed {seed}-{number}"
        assert (done.entries, done.present) == (len(content.wholes), 0)
        assert (done.events, done.incidents) == (len(content.events), len(content.incidents))
        report = check_directory(tmp_path / f"new{number}")
        assert report.findings == ()
        assert len(report.shards) == (shards or filler.shards)
        assert all(shard.last_token > TOKENS_BEFORE_COPIES for shard in report.shards)
        assert all(shard.latest_ms >= filler.now for shard in report.shards)
        again = exported(tmp_path / f"new{number}")
        assert [line for line in lines_of(data)[1:-1] if line["type"] == "event"] == [
            line for line in lines_of(again)[1:-1] if line["type"] == "event"
        ]
        if len(report.shards) == 1:
            # Each shard keeps the order of listings.
            assert order(data) == order(again)


def order(data: bytes) -> list[tuple[str, ...]]:
    return [tuple(line["identity"].values()) for line in lines_of(data) if line["type"] == "entry"]


async def test_an_export_is_documented_lines(tmp_path: Path) -> None:
    await small(tmp_path / "data", Whole(committed(1, name("k"), outcome=Outcome(200, (("a", "b"),), b"\xff")), None))
    first, entry, end = lines_of(exported(tmp_path / "data"))
    assert list(first) == ["type", "version", "exported_at", "shards", "last_token", "latest_ms", "outcomes"]
    assert (first["type"], first["version"], first["shards"], first["last_token"]) == ("export", 1, 1, 100)
    assert entry["identity"] == {"tenant": "default", "namespace": "trade", "key": "k"}
    assert entry["record"]["outcome"] == {
        "status": 200,
        "headers": [["a", "b"]],
        "body": {"b64": "/w=="},
        "omitted": False,
    }
    assert entry["record"]["state"] == "committed"
    assert end == {"type": "end", "entries": 1, "events": 0, "incidents": 0}


async def test_outcomes_can_be_left_out(tmp_path: Path) -> None:
    outcome = Outcome(201, (("secret", "header"),), b"secret body")
    await small(tmp_path / "data", Whole(committed(1, name("k"), outcome=outcome), None))
    assert b"secret" in exported(tmp_path / "data")
    data = exported(tmp_path / "data", outcomes=False)
    assert b"secret" not in data
    imported(tmp_path / "new", data)
    record = content_of(tmp_path / "new").wholes[name("k")].entry.record
    assert record is not None
    assert record.outcome == Outcome(201, omitted=True)


async def test_keys_that_are_not_there_come_in_beside_those_that_are(tmp_path: Path) -> None:
    one = await filled(tmp_path / "one", Random(31), 3)
    await small(tmp_path / "two", Whole(pending(7, name("new key")), None), Whole(committed(9, name("other")), None))
    done = imported(tmp_path / "one", exported(tmp_path / "two"))
    assert (done.entries, done.present, done.shards) == (2, 0, 3)
    content = content_of(tmp_path / "one").plain()
    assert {name("new key"), name("other")} < content.wholes.keys()
    expected = one.content.plain()
    del content.wholes[name("new key")], content.wholes[name("other")]
    assert content == expected
    assert check_directory(tmp_path / "one").findings == ()


async def test_keys_that_are_there_with_something_else_are_named_and_nothing_is_changed(tmp_path: Path) -> None:
    await small(tmp_path / "one", Whole(pending(1, name("a")), None), Whole(pending(2, name("b")), None))
    await small(tmp_path / "two", Whole(committed(5, name("a")), None), Whole(pending(6, name("c")), None))
    before = content_of(tmp_path / "one")
    with pytest.raises(Conflicts, match="1 keys are there already") as caught:
        imported(tmp_path / "one", exported(tmp_path / "two"))
    assert (caught.value.count, caught.value.named) == (1, (name("a"),))
    assert content_of(tmp_path / "one") == before
    left = {file for file in os.listdir(tmp_path / "one") if not file.endswith(("-wal", "-shm"))}
    assert left == {"LOCK", "idemactor.json", "journal.db", "shard-0000.db", "shard-0000.lock"}


async def test_an_import_once_more_changes_nothing(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "data", Random(41), 2)
    data = exported(tmp_path / "data")
    imported(tmp_path / "new", data)
    before = read_meta(tmp_path / "new")
    done = imported(tmp_path / "new", data)
    assert (done.entries, done.present, done.rebuilt) == (0, len(filler.content.wholes), None)
    assert (done.events, done.incidents) == (0, 0)
    assert read_meta(tmp_path / "new") == before


async def test_part_of_it_was_there(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "data", Random(43), 2)
    data = exported(tmp_path / "data")
    lines = data.splitlines(keepends=True)
    kept = [line for line in lines[1:-1] if line.startswith(b'{"type":"entry"')][::2]
    half = b"".join([lines[0], *kept, json.dumps({"type": "end", **ends(len(kept))}).encode()])
    imported(tmp_path / "new", half)
    done = imported(tmp_path / "new", data)
    assert (done.present, done.entries) == (len(kept), len(filler.content.wholes) - len(kept))
    assert content_of(tmp_path / "new").plain() == filler.content.plain()


def ends(entries: int, events: int = 0, incidents: int = 0) -> dict[str, int]:
    return {"entries": entries, "events": events, "incidents": incidents}


async def test_two_shards_with_the_same_numbers_are_exported_and_come_back(tmp_path: Path) -> None:
    await two_alike(tmp_path / "data")
    imported(tmp_path / "new", exported(tmp_path / "data"), 1)
    content = content_of(tmp_path / "new")
    assert (len(content.wholes), len(content.events), len(content.incidents)) == (6, 4, 2)
    line = [each.seq for each in content.events.values()]
    records = [whole.entry.record for whole in content.wholes.values()]
    line += [each.delivery.seq for each in records if each is not None and each.delivery is not None]
    assert len(set(line)) == 6
    assert check_directory(tmp_path / "new").findings == ()


async def test_an_import_that_was_interrupted_anywhere_leaves_what_was_there(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "data", Random(51), 2, 10)
    data = exported(tmp_path / "data")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        steps = interrupt_at(patched, 10**9)
        imported(tmp_path / "first", data, 2)
    for count in range(len(steps)):
        path = tmp_path / f"i{count}"
        with pytest.MonkeyPatch.context() as patched:
            # As by SIGKILL: nothing is tidied up.
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)
            interrupt_at(patched, count)
            with pytest.raises(Interrupted):
                imported(path, data, 2)
        if path.exists() and read_meta(path) is None and set(os.listdir(path)) - {"LOCK"}:
            with pytest.raises(StartError, match="run it once more"):
                DataDirectory.open(path)
        imported(path, data, 2)
        assert content_of(path).plain() == filler.content.plain()
        assert check_directory(path).findings == ()


# ------------------------------------------------------------------------------------------------------------- refusals


async def one_line(path: Path) -> list[Any]:
    return lines_of(exported(await small(path, Whole(committed(1, name("k")), None))))


def changed(lines: list[Any], change: Callable[[list[Any]], object]) -> bytes:
    change(lines)
    return b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)


def twice(lines: list[Any]) -> None:
    """The entry is there twice."""
    lines.insert(1, lines[1])
    lines[3].update(entries=2)


CONTENT: dict[str, Any] = {"content_type": "text/plain", "body": "x"}
DELIVERY = {"seq": 5, "order_key": None, "due_at": None, "deliver_until": NOW}
OPERATION = operation(7)
A_TOMBSTONE = {"token": 5, "request_id": None, "operation_id": OPERATION, "expires_at": NOW}
IDENTITY = {"tenant": "default", "namespace": "trade", "key": "k"}


def an_event(**changes: Any) -> dict[str, Any]:
    content = {"content_type": "text/plain", "body": "x"}
    fields = {"seq": 5, "identity": IDENTITY, "id": f"{OPERATION}.1", "operation_id": OPERATION, "committed_at": NOW}
    return {"type": "event", **fields, "content": content} | changes


def an_incident(**changes: Any) -> dict[str, Any]:
    fields = {"identity": IDENTITY, "operation_id": OPERATION, "token": 5, "present_token": None, "at": NOW}
    return {"type": "incident", **fields, "outcome": None} | changes


def insert(lines: list[Any], *more: Any) -> None:
    """Lines behind the entry, and the count of them under the name that comes last."""
    *items, name_of_count = more
    lines[2:2] = items
    lines[-1][name_of_count] = len(items)


def member_twice(line: dict[str, Any]) -> bytes:
    return json.dumps(line).replace('"key": "k"', '"key": "k", "key": "l"').encode() + b"\n"


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "line 1: it is no JSON": lambda lines: lines.insert(0, b"\xff\n"),
    "line 1: is an object": lambda lines: lines.insert(0, []),
    "line 1: type: is export": lambda lines: lines.insert(0, {"type": "no"}),
    "line 1: an export begins": lambda lines: lines.pop(0),
    "line 1: version: this release knows": lambda lines: lines[0].update(version=2),
    "line 2: record.state: is one of": lambda lines: lines[1]["record"].update(state="lost"),
    "line 2: record.token: is an integer": lambda lines: lines[1]["record"].update(token="1"),
    "line 2: record.token: is 1 to": lambda lines: lines[1]["record"].update(token=2**53),
    "line 2: record.reserved_at: is an integer": lambda lines: lines[1]["record"].update(reserved_at=2**63),
    "line 2: record.accepted: is a flag": lambda lines: lines[1]["record"].update(accepted=1),
    "line 2: record.outcome.body: is a text": lambda lines: lines[1]["record"]["outcome"].update(body={"b64": "?"}),
    "line 2: record.outcome.headers: is an array": lambda lines: lines[1]["record"]["outcome"].update(headers={}),
    "line 2: record.colour: there is no such member": lambda lines: lines[1]["record"].update(colour="red"),
    "line 2: record.attempt: is missing": lambda lines: lines[1]["record"].pop("attempt"),
    "line 2: identity: a key has": lambda lines: lines[1]["identity"].update(key=""),
    "line 2: identity.tenant: is a name": lambda lines: lines[1]["identity"].update(tenant=""),
    "line 2: identity: a namespace": lambda lines: lines[1]["identity"].update(namespace="No"),
    "line 2: record.holder: is a text without lone surrogates": lambda lines: lines[1]["record"].update(
        holder="\ud800"
    ),
    "line 3: the end counts 2 entries": lambda lines: lines[2].update(entries=2),
    "line 3: the end is missing": lambda lines: lines.pop(),
    "line 4: there is something behind": lambda lines: lines.append(lines[2]),
    "line 3: identity: this key is on an earlier line": twice,
    "line 2: key: this member is there twice": lambda lines: lines.insert(1, member_twice(lines.pop(1))),
    "line 4: id: an event of this id is on an earlier line": lambda lines: insert(
        lines, an_event(), an_event(), "events"
    ),
    "line 4: token: an incident of this key and token": lambda lines: insert(
        lines, an_incident(), an_incident(at=NOW - 1), "incidents"
    ),
}
OPEN = {"state": "lapsed", "committed_at": None, "expires_at": None, "outcome": None, "lease_expires_at": NOW}
"""What makes the committed record one that is not."""
OF_RECORDS: list[tuple[str, dict[str, Any]]] = [
    ("attempt: is 1 to", {"attempt": 0}),
    ("attempt: is 1 to", {"attempt": 2**63 - 1}),
    ("token: is 1 to", {"token": 2**53 - 1}),
    *(
        ("operation_id: is a UUID of version 7", {"operation_id": operation_id})
        for operation_id in (
            "",
            "x",
            "a\r\nb",
            'a"b',
            f"{OPERATION}\n",
            OPERATION.upper(),
            OPERATION.replace("-7", "-4", 1),
        )
    ),
    ("committed_at: is a time", {"committed_at": None}),
    ("expires_at: is a time", {"expires_at": None}),
    ("lease_expires_at: is null", {"lease_expires_at": NOW}),
    ("lease_expires_at: is a time", OPEN | {"lease_expires_at": None}),
    ("committed_at: is null", OPEN | {"committed_at": NOW}),
    ("outcome: is null", OPEN | {"outcome": {"status": 200}}),
    ("accepted: is false", OPEN | {"accepted": True}),
    ("first_seen_at: is 0 to", {"first_seen_at": -1}),
    ("reserved_at: is 0 to", {"reserved_at": 2**60}),
    ("unresolved_expires_at: is 0 to", OPEN | {"unresolved_expires_at": 2**60}),
    ("ttl_ms: is 1 to", {"ttl_ms": -1}),
    ("window_ms: is 1 to", {"window_ms": 2**60}),
    ("reason: has at most", {"reason": "x" * 513}),
    ("reason: holds no control character", {"reason": "a\x00"}),
    ("holder: holds no control character", {"holder": "\x00"}),
    ("holder: holds no control character", {"holder": "two\nlines"}),
    ("request_id: is not empty", {"request_id": ""}),
    ("request_id: holds no control character", {"request_id": "a\x85"}),
    ("fingerprint.value: is not empty", {"fingerprint": {"value": "", "rule": "v1"}}),
    ("fingerprint.value: has at most", {"fingerprint": {"value": "x" * 129, "rule": "v1"}}),
    ("fingerprint.rule: holds no control character", {"fingerprint": {"value": "x", "rule": "v\x001"}}),
    ("holder: has at most", {"holder": "x" * 129}),
    ("request_id: has at most", {"request_id": "x" * 129}),
    ("outcome.status: is 100 to 599", {"outcome": {"status": 99}}),
    ("outcome.status: is 100 to 599", {"outcome": {"status": 2**40}}),
    ("outcome.headers[1]: is the name", {"outcome": {"status": 200, "headers": [["a", "b"], ["a", "b\r\nc: d"]]}}),
    ("outcome.headers[0]: is the name", {"outcome": {"status": 200, "headers": [["", "b"]]}}),
    ("outcome's size: is 0 to", {"outcome": {"status": 200, "headers": [["a", "b" * 2**20]]}}),
    ("outcome: is a status alone", {"outcome": {"status": 200, "body": "x", "omitted": True}}),
    ("earlier[1].token: is 1 to", {"earlier": [{"token": 1}, {"token": 2**53 - 1}]}),
    ("earlier: has at most 16", {"earlier": [{"token": 1}] * 17}),
    ("delivery.seq: is 1 to", {"delivery": DELIVERY | {"seq": 2**60, "ending": "failed"}}),
    ("delivery.ending: is there", {"delivery": DELIVERY}),
    ("delivery.ending: is there", OPEN | {"delivery": DELIVERY | {"ending": "failed"}}),
    ("delivery.due_at: is null", {"delivery": DELIVERY | {"ending": "failed", "due_at": NOW}}),
    ("delivery.due_at: is a time", OPEN | {"state": "pending", "lease_expires_at": None, "delivery": DELIVERY}),
    ("delivery.order_key: is not empty", {"delivery": DELIVERY | {"ending": "failed", "order_key": ""}}),
    ("delivery.order_key: holds no", {"delivery": DELIVERY | {"ending": "failed", "order_key": "a\tb"}}),
    ("delivery.order_key: has at most", {"delivery": DELIVERY | {"ending": "failed", "order_key": "x" * 257}}),
]
OF_ENTRIES: list[tuple[str, dict[str, Any]]] = [
    ("id: is 1 to", {"id": 0}),
    ("alarm_at: is a time", {"alarm_at": None}),
    ("alarm_at: is 0 to", {"alarm_at": -1}),
    ("record, tombstone: one of both", {"record": None}),
    ("tombstone.token: is not the record's", {"tombstone": A_TOMBSTONE | {"token": 1}}),
    ("tombstone.token: is 1 to", {"tombstone": A_TOMBSTONE | {"token": 0}}),
    ("tombstone.operation_id: is a UUID", {"tombstone": A_TOMBSTONE | {"operation_id": "x"}}),
    ("tombstone.request_id: is not empty", {"tombstone": A_TOMBSTONE | {"request_id": ""}}),
    ("tombstone.expires_at: is 0 to", {"tombstone": A_TOMBSTONE | {"expires_at": 2**60}}),
    *(("identity.tenant: is a name", {"identity": IDENTITY | {"tenant": name}}) for name in ("a\nb", "A", "x" * 64)),
    ("intent: is null", {"intent": {"content_type": "", "body": ""}}),
]
OF_OTHERS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("id: is the operation's id", {"type": "event", "id": event_id})
        for event_id in ("other.1", OPERATION, *(f"{OPERATION}{end}" for end in (".0", ".01", ".1\n", ".101", ".x")))
    ),
    ("operation_id: is a UUID", {"type": "event", "operation_id": "x", "id": "x.1"}),
    ("content.order_key: is not empty", {"type": "event", "content": CONTENT | {"order_key": ""}}),
    ("content.headers.0: is no name", {"type": "event", "content": CONTENT | {"headers": [["a b", "c"]]}}),
    ("content.headers.0: Host is written", {"type": "event", "content": CONTENT | {"headers": [["Host", "c"]]}}),
    ("content.headers.0: is no value", {"type": "event", "content": CONTENT | {"headers": [["a", "b\x01"]]}}),
    ("content: is empty", {"type": "event", "content": CONTENT | {"headers": [list(OMITTED)]}}),
    ("content's size: is 0 to", {"type": "event", "content": CONTENT | {"headers": [["a", "b" * 2**20]]}}),
    ("seq: is 1 to", {"type": "event", "seq": 2**53}),
    ("committed_at: is 0 to", {"type": "event", "committed_at": 2**60}),
    ("content.content_type: holds no", {"type": "event", "content": {"content_type": "a\nb", "body": ""}}),
    ("token: is 1 to", {"token": 2**60}),
    ("present_token: is 1 to", {"present_token": 2**60}),
    ("present_token: is 1 to", {"present_token": 0}),
    ("at: is 0 to", {"at": -1}),
    ("operation_id: is a UUID", {"operation_id": "\0"}),
    ("outcome.status: is 100 to 599", {"outcome": {"status": 600}}),
]
OF_HEADS: list[tuple[str, dict[str, Any]]] = [
    *(("shards: is 1 to 1024", {"shards": shards}) for shards in (2**53 - 1, 1025, 0, -1)),
    *(("last_token: is 0 to", {"last_token": token}) for token in (2**53 - 1, 2**60, 2**63 - 1, -1)),
    *(("latest_ms: is 0 to", {"latest_ms": at}) for at in (-1, 2**62)),
    *(("exported_at: is 0 to", {"exported_at": at}) for at in (-1, 2**62)),
]


def with_other(lines: list[Any], changes: dict[str, Any]) -> None:
    if changes.get("type") == "event":
        insert(lines, an_event(**changes), "events")
    else:
        insert(lines, an_incident(**changes), "incidents")


BROKEN: list[tuple[str, Callable[[list[Any]], object]]] = [
    *(
        (f"line 2: record.{what}", lambda lines, c=changes: lines[1]["record"].update(c))
        for what, changes in OF_RECORDS
    ),
    *((f"line 2: {what}", lambda lines, c=changes: lines[1].update(c)) for what, changes in OF_ENTRIES),
    *((f"line 3: {what}", lambda lines, c=changes: with_other(lines, c)) for what, changes in OF_OTHERS),
    *((f"line 1: {what}", lambda lines, c=changes: lines[0].update(c)) for what, changes in OF_HEADS),
    *(
        (
            f"line 2: intent{what}",
            lambda lines, i=intent: lines[1].update(
                intent=i, record=lines[1]["record"] | {"delivery": DELIVERY | {"ending": "failed"}}
            ),
        )
        for what, intent in (
            (".content_type: has at most", {"content_type": "x" * 253, "body": ""}),
            (".content_type: holds no control", {"content_type": "a\nb", "body": ""}),
            (".content_type: no header field", {"content_type": " a", "body": ""}),
            (".headers.0: Content-Length is", CONTENT | {"headers": [["Content-Length", "5"]]}),
            (".headers: there are more than", CONTENT | {"headers": [["a", "b"]] * 65}),
            ("'s size: is 0 to", CONTENT | {"headers": [["a", "b" * 2**20]]}),
        )
    ),
    (
        "line 2: intent: is there",
        lambda lines: lines[1]["record"].update(OPEN | {"delivery": DELIVERY}),
    ),
]


@pytest.mark.parametrize(
    ("what", "change"), BROKEN, ids=[f"{number} {what}" for number, (what, _) in enumerate(BROKEN)]
)
async def test_what_no_server_can_have_written_is_refused_by_line_and_member_before_anything_is_made(
    tmp_path: Path, what: str, change: Callable[[list[Any]], object]
) -> None:
    data = changed(await one_line(tmp_path / "data"), change)
    with pytest.raises(StorageError) as caught:
        imported(tmp_path / "new", data)
    assert str(caught.value).startswith(what)
    assert not (tmp_path / "new").exists()
    # The number of shards of a head is wrong whatever --shards says.
    with pytest.raises(StorageError):
        imported(tmp_path / "new", data, 2)


async def test_what_the_rules_are_made_of_is_taken_as_long_as_none_is_broken(tmp_path: Path) -> None:
    lines = await one_line(tmp_path / "data")
    forgotten = {"content_type": "", "body": "", "headers": [list(OMITTED)], "order_key": "o"}
    insert(lines, an_event(), an_event(seq=6, id=f"{OPERATION}.100", content=forgotten), "events")
    insert(lines, an_incident(), "incidents")
    lines[1].update(tombstone=A_TOMBSTONE, intent={"content_type": "", "body": ""})
    lines[1]["record"].update(delivery=DELIVERY | {"ending": "failed"})
    done = imported(tmp_path / "new", changed(lines, lambda _: None))
    assert (done.entries, done.events, done.incidents) == (1, 2, 1)
    assert check_directory(tmp_path / "new").findings == ()


@pytest.mark.parametrize("what", CHANGES)
async def test_what_is_wrong_with_an_export_is_said_with_its_line_and_field(tmp_path: Path, what: str) -> None:
    data = changed(await one_line(tmp_path / "data"), CHANGES[what])
    with pytest.raises(StorageError) as caught:
        imported(tmp_path / "new", data)
    assert str(caught.value).startswith(what)
    assert not (tmp_path / "new").exists()


async def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idemactor.storage.lines.LINE_BYTES_MAX", 10)
    with pytest.raises(BadLine, match="line 1: it is longer than 10 bytes"):
        imported(tmp_path / "new", b"x" * 11)


async def test_what_cannot_be_built_leaves_no_unfinished_files_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = exported(await small(tmp_path / "data", Whole(committed(1, name("k")), None)))
    monkeypatch.setattr(rebuilding, "create_journal", lambda *_, **__: fail_with(OSError(errno.ENOSPC, "full")))
    for path in (tmp_path / "new", tmp_path / "there"):
        if path.name == "there":
            await small(path, Whole(committed(1, name("other")), None))
        with pytest.raises(StartError):
            imported(path, data)
        left = os.listdir(path) if path.exists() else []
        assert not [each for each in left if each.startswith(("files-", "import"))]
    monkeypatch.undo()
    DataDirectory.open(tmp_path / "there").close()
    imported(tmp_path / "new", data)


def fail_with(error: Exception) -> None:
    raise error


async def test_tokens_that_leave_none_behind_them_are_refused_by_what_makes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await small(tmp_path / "data", Whole(committed(1, name("k")), None))
    data = exported(await small(tmp_path / "other", Whole(committed(1, name("l")), None)))
    before = content_of(path)
    monkeypatch.setattr(importing, "token_at", lambda _: TOKEN_MAX)
    with pytest.raises(StorageError, match="too few are left"):
        imported(path, data)
    assert content_of(path) == before
    DataDirectory.open(path).close()


async def test_where_nothing_can_be_imported_to_is_said(tmp_path: Path) -> None:
    data = exported(await small(tmp_path / "data", Whole(pending(1, name("k")), None)))
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="not a directory"):
        imported(tmp_path / "file", data)
    with pytest.raises(StartError, match="not empty"):
        imported(tmp_path, data)
    with pytest.raises(StartError, match="leave --shards out"):
        imported(tmp_path / "data", data, 2)
    with pytest.raises(StartError, match="--shards is 1 to 1024"):
        imported(tmp_path / "new", data, 0)
    with DataDirectory.open(tmp_path / "data"), pytest.raises(StartError, match="in use"):
        imported(tmp_path / "data", data)
    with DataDirectory.open(tmp_path / "data"), pytest.raises(StartError, match="in use"):
        exported(tmp_path / "data")


async def test_a_clock_that_lags_behind_an_export_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = exported(await small(tmp_path / "data", Whole(pending(1, name("k")), None)))
    monkeypatch.setattr(importing, "wall_ms", lambda: NOW)
    with pytest.raises(StartError, match=r"line 1: exported_at: is .* ahead of the clock of this machine"):
        imported(tmp_path / "new", data)
    lines = lines_of(data)
    lines[0].update(exported_at=NOW)
    lines[1]["record"].update(reserved_at=NOW + 300_001)
    with pytest.raises(StartError, match=r"line 2: record\.reserved_at: is 300001 ms ahead"):
        imported(tmp_path / "new", changed(lines, lambda _: None))


def test_an_empty_directory_is_exported_and_comes_back(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", 2).close()
    file = io.BytesIO()
    assert export(tmp_path / "data", file.write, silent) == End(0, 0, 0)
    imported(tmp_path / "new", file.getvalue())
    assert content_of(tmp_path / "new") == Content()
