"""Another number of shards carries everything over, each thing to the shard of its hash, and grants no token twice."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import apsw
import pytest

from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.record import Incident
from idemactor.errors import StartError, StorageError
from idemactor.shard.start import open_engines, settle_journals
from idemactor.storage import rebuilding
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.layout import META_NAME, read_meta, shard_name
from idemactor.storage.progress import silent
from idemactor.storage.reading import Whole
from idemactor.storage.resharding import reshard
from idemactor.storage.sqlite import SqliteEngine
from tests.storage.filled import Content, Filler, content_of, killed
from tests.storage.samples import INTENT, NOW, dispatched, event, name, operation, pending
from tests.storage.test_backups import Interrupted, interrupt_at

ROUNDS = 8


async def filled(path: Path, rng: Random, shards: int, turns: int = 30) -> Filler:
    filler = Filler(rng, path.with_name(path.name + "-live"), shards)
    await filler.open()
    await filler.turns(turns)
    killed(filler.path, path)
    await filler.close()
    return filler


async def test_everything_goes_to_the_shard_of_its_hash(tmp_path: Path) -> None:
    seed = SystemRandom().randrange(2**32)
    for number in range(ROUNDS):
        rng = Random(f"{seed}-{number}")
        path = tmp_path / f"data{number}"
        filler = await filled(path, rng, rng.randrange(1, 5))
        expected = filler.content.plain()
        for shards in rng.sample([n for n in range(1, 8) if n != filler.shards], 2):
            before = [shard.last_token for shard in check_directory(path).shards]
            rebuilt = reshard(path, shards, silent)
            assert rebuilt is not None
            # `content_of` looks at shards, orders and numbers; places in line of one process stay as they are.
            assert content_of(path).plain() == expected, f"seed {seed}-{number}"
            assert rebuilt.entries == len(expected.wholes)
            report = check_directory(path)
            assert report.findings == ()
            assert len(report.shards) == shards
            assert all(shard.last_token >= max(before) for shard in report.shards)
            assert all(shard.latest_ms >= filler.now for shard in report.shards)
        with DataDirectory.open(path, shards):
            pass


async def test_the_old_files_are_left_as_they_are(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "data", Random(1), 2)
    meta = (tmp_path / "data" / META_NAME).read_bytes()
    rebuilt = reshard(tmp_path / "data", 3, silent)
    assert rebuilt is not None
    assert rebuilt.replaced == tmp_path / "data"
    (tmp_path / "data" / META_NAME).write_bytes(meta)
    assert content_of(tmp_path / "data") == filler.content


async def test_as_many_shards_as_there_are_is_nothing_to_do(tmp_path: Path) -> None:
    await filled(tmp_path / "data", Random(1), 2, 3)
    assert reshard(tmp_path / "data", 2, silent) is None
    assert read_meta(tmp_path / "data") == replace(read_meta(tmp_path / "data"), files=0)  # type: ignore[type-var]
    for shards in (0, 1025):
        with pytest.raises(StartError, match="--to is 1 to 1024"):
            reshard(tmp_path / "data", shards, silent)
    with DataDirectory.open(tmp_path / "data"), pytest.raises(StartError, match="in use"):
        reshard(tmp_path / "data", 3, silent)
    with pytest.raises(StartError, match="is not there"):
        reshard(tmp_path / "none", 3, silent)
    assert not (tmp_path / "none").exists()


async def test_what_took_its_place_is_served_by_any_number_of_workers(tmp_path: Path) -> None:
    path = tmp_path / "data"
    filler = await filled(path, Random(61), 2)
    reshard(path, 3, silent)
    for workers in (2, 3, 1):
        # As a start does it.
        with DataDirectory.open(path, workers=workers) as directory:
            directory.claim(range(3 if workers > 1 else 0))
            await settle_journals(directory, "full", workers)
            async with open_engines(directory, "full") as engines:
                assert [opened.last_token > 0 for _, opened in engines] == [True] * 3
        report = check_directory(path)
        assert report.findings == ()
        assert content_of(path).plain() == filler.content.plain()
        meta = read_meta(path)
        assert meta is not None
        assert (meta.workers, meta.files) == (workers, 1)
        assert meta.journals() == sorted(file for file in os.listdir(path / "files-0001") if file in meta.journals())


def of_shard(shard: int, shards: int, count: int) -> list[Identity]:
    identities = (name(f"k{number}") for number in range(10_000))
    return [each for each in identities if shard_of(identity_hash(each), shards) == shard][:count]


async def two_alike(path: Path) -> tuple[list[Identity], list[Identity]]:
    """Two shards whose entries, tokens, places in line and incidents have the same numbers."""
    groups = (of_shard(0, 2, 4), of_shard(1, 2, 4))
    with DataDirectory.open(path, 2) as data:
        for shard, keys in enumerate(groups):
            engine = SqliteEngine(data.engine_path(shard), shard=shard, shards=2, threads="never")
            await engine.open()
            entries = [pending(1, keys[0]), pending(2, keys[1]), dispatched(3, keys[2])]
            batch = Batch(NOW, 4, puts=entries, intents={3: INTENT})
            batch.events = [replace(event(seq, keys[0]), id=f"{operation(seq)}.{1 + shard}") for seq in (103, 104)]
            batch.incidents = [Incident(keys[0], operation(4), 4, 1, NOW, None)]
            batch.tallies = {}
            assert await engine.commit(batch) is CommitResult.OK
            await engine.close()
    return groups


async def test_two_that_have_the_same_numbers_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "data"
    first, second = await two_alike(path)
    assert reshard(path, 1, silent) is not None
    assert check_directory(path).findings == ()
    content = content_of(path)
    assert len(content.wholes) == 6
    # The order of listings is that of the grants.
    order = sorted(content.wholes, key=lambda identity: content.wholes[identity].entry.id)
    assert order == [first[0], second[0], first[1], second[1], first[2], second[2]]
    tokens = [whole.entry.record.token for whole in content.wholes.values() if whole.entry.record is not None]
    assert sorted(tokens) == [1, 1, 2, 2, 3, 3]
    assert {(key, token) for key, token in content.incidents} == {(first[0], 4), (second[0], 4)}
    # No place in line is taken twice, and nothing that stood behind something stands before it now.
    line = [(*places(content, keys),) for keys in (first, second)]
    assert len({place for places in line for place in places}) == 6
    assert all(one == tuple(sorted(one)) for one in line)
    (shard,) = check_directory(path).shards
    assert shard.last_token >= 4 + 6


def places(content: Content, keys: list[Identity]) -> list[int]:
    """Where the delivery and the events of one old shard stand: they stood at 103 (both kinds) and 104."""
    record = content.wholes[keys[2]].entry.record
    assert record is not None
    assert record.delivery is not None
    events = sorted(each.seq for each in content.events.values() if each.identity == keys[0])
    return [record.delivery.seq, *events]


async def test_interrupted_anywhere_it_goes_on_where_it_was(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "first", Random(11), 2, 12)
    expected = filler.content.plain()
    with pytest.MonkeyPatch.context() as patched:
        steps = interrupt_at(patched, 10**9)
        reshard(tmp_path / "first", 3, silent)
    resumed = []
    for count in range(len(steps)):
        path = tmp_path / f"data{count}"
        killed(filler.path, path)
        with pytest.MonkeyPatch.context() as patched:
            interrupt_at(patched, count)
            with pytest.raises(Interrupted):
                reshard(path, 3, silent)
        # Whatever was interrupted, the directory is the old one or the new one, and whole.
        assert content_of(path).plain() == expected
        assert check_directory(path).sound
        rebuilt = reshard(path, 3, silent)
        assert content_of(path).plain() == expected
        assert check_directory(path).findings == ()
        assert len(check_directory(path).shards) == 3
        resumed.append(-1 if rebuilt is None else rebuilt.resumed)
    assert {0, 1, 2, 3} <= set(resumed)


async def test_what_an_interrupted_run_made_of_other_data_is_thrown_away(tmp_path: Path) -> None:
    path = tmp_path / "data"
    filler = Filler(Random(2), path, 2)
    await filler.open()
    await filler.turns(10)
    await filler.close()
    real = rebuilding._compare

    def interrupted(*_: object) -> None:
        raise Interrupted

    for change in (True, False):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(rebuilding, "_compare", interrupted)
            with pytest.raises(Interrupted):
                reshard(path, 3, silent)
        assert any("did not come to its end" in finding.what for finding in check_directory(path).findings)
        if change:
            # A server ran in between.
            again = Filler(Random(3), path, 2)
            again.contents, again.history = filler.contents, filler.history
            again.now = filler.now
            again.seq = filler.seq + 1
            await again.open()
            await again.turns(5)
            await again.close()
    rebuilt = reshard(path, 3, silent)
    assert rebuilt is not None
    assert rebuilt.resumed == 3
    assert content_of(path).plain() == again.content.plain()
    assert real is rebuilding._compare


DAMAGES = {
    "a record that is lost": "DELETE FROM records WHERE id = (SELECT max(id) FROM records)",
    "a token that changed": "UPDATE records SET token = token + 1 WHERE id = (SELECT max(id) FROM records)",
    "an outcome that changed": "UPDATE outcomes SET body = x'00' WHERE id = (SELECT max(id) FROM outcomes)",
    "an intent that changed": "UPDATE intents SET body = x'00' WHERE id = (SELECT max(id) FROM intents)",
    "a delivery that changed": "UPDATE deliveries SET deliver_until = 1 WHERE id = (SELECT max(id) FROM deliveries)",
    "an event that is lost": "DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)",
    "an incident that changed": "UPDATE incidents SET token = token + 1 WHERE id = (SELECT max(id) FROM incidents)",
}


@pytest.mark.parametrize("what", DAMAGES)
async def test_a_new_file_that_is_not_as_it_should_be_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    filler = await filled(tmp_path / "data", Random(21), 2)
    real: Callable[..., None] = rebuilding._build

    def damaging(path: Path, *rest: Any) -> None:
        real(path, *rest)
        connection = apsw.Connection(str(path))
        connection.execute(DAMAGES[what])
        assert connection.changes() == 1
        connection.close()

    monkeypatch.setattr(rebuilding, "_build", damaging)
    with pytest.raises(StorageError, match="the old files still count"):
        reshard(tmp_path / "data", 1, silent)
    assert content_of(tmp_path / "data") == filler.content
    # To go on with it would fail again.
    assert not (tmp_path / "data" / "files-0001").exists()


@pytest.mark.parametrize("error", [apsw.FullError("database or disk is full"), OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("interrupted", [False, True])
async def test_what_finds_no_room_leaves_nothing_that_takes_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, interrupted: bool
) -> None:
    path = tmp_path / "data"
    filler = await filled(path, Random(21), 2)

    def failing_with(failure: BaseException) -> None:
        def build(*_: object) -> None:
            raise failure

        monkeypatch.setattr(rebuilding, "_build", build)

    if interrupted:
        failing_with(Interrupted())
        with pytest.raises(Interrupted):
            reshard(path, 3, silent)
        assert (path / "files-0001").is_dir()
    failing_with(error)
    with pytest.raises(StartError, match="the disk is full"):
        reshard(path, 3, silent)
    assert not list(path.glob("files-*"))
    monkeypatch.undo()
    assert reshard(path, 3, silent) is not None
    assert content_of(path).plain() == filler.content.plain()


async def test_damaged_data_are_not_carried_over(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "data", Random(21), 2)
    connection = apsw.Connection(str(tmp_path / "data" / shard_name(0)))
    connection.execute("DELETE FROM outcomes")
    connection.close()
    with pytest.raises(StorageError, match="outcome of entry"):
        reshard(tmp_path / "data", 3, silent)
    assert read_meta(tmp_path / "data") is not None
    assert len(filler.content.wholes) > 0


def test_a_directory_that_lost_a_file_is_refused(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", 2).close()
    os.unlink(tmp_path / "data" / shard_name(1))
    with pytest.raises(StartError, match="has lost"):
        reshard(tmp_path / "data", 3, silent)


def test_what_made_the_files_can_be_read_later(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", 2).close()
    rebuilt = reshard(tmp_path / "data", 3, silent)
    assert rebuilt is not None
    made = json.loads((rebuilt.files / "made.json").read_bytes())
    assert (made["made_by"], made["entries"], made["digest"]) == ("reshard", 0, rebuilt.digest)
    assert made["replaced"]["shards"] == 2


def test_digests_tell_what_differs() -> None:
    whole = Whole(dispatched(1, name("k")), INTENT)
    others = [
        replace(whole, intent=None),
        replace(whole, intent=replace(INTENT, body=b"")),
        replace(whole, entry=replace(whole.entry, alarm_at=1)),
    ]
    digests = {rebuilding.digest_of_whole(each) for each in (whole, *others)}
    assert len(digests) == 4
