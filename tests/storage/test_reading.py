"""A shard is read as a start would bring it about, and nothing is changed by it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random, SystemRandom

import pytest

from idemactor.errors import StorageError
from idemactor.storage.check import check_directory
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import Held, Row
from idemactor.storage.layout import read_meta, shard_name
from idemactor.storage.reading import Part, read_held, read_shard
from idemactor.storage.resharding import open_readers
from idemactor.storage.sqlite_create import create_file
from tests.storage import format_1
from tests.storage.filled import Filler, content_of, killed
from tests.storage.samples import name

ROUNDS = 25


def digests(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}


async def test_what_is_read_is_what_was_acknowledged(tmp_path: Path) -> None:
    seed = SystemRandom().randrange(2**32)
    in_journals = 0
    for number in range(ROUNDS):
        rng = Random(f"{seed}-{number}")
        filler = Filler(rng, tmp_path / f"data{number}", rng.randrange(1, 4))
        await filler.open()
        await filler.turns(rng.randrange(1, 40))
        copy = killed(filler.path, tmp_path / f"copy{number}")
        await filler.close()
        before = digests(copy)
        in_journals += sum(shard.journal_batches for shard in check_directory(copy).shards)
        assert content_of(copy) == filler.content, f"seed {seed}-{number}"
        assert digests(copy) == before
        # Once more after the end, when everything is in the files.
        assert content_of(filler.path) == filler.content, f"seed {seed}-{number}"
    assert in_journals > ROUNDS


async def test_a_part_has_its_own_keys_and_all_parts_have_them_all(tmp_path: Path) -> None:
    filler = Filler(Random(3), tmp_path / "data", 1)
    await filler.open()
    await filler.turns(60)
    await filler.close()
    for shards in (1, 2, 3, 7):
        with read_shard(filler.path / shard_name(0), read_held(filler.path / JOURNAL_NAME, 0)) as reader:
            found = [list(reader.wholes(Part(shard, shards))) for shard in range(shards)]
            for shard, wholes in enumerate(found):
                assert all(Part(shard, shards).has(whole.entry.identity) for whole in wholes)
            assert sum(map(len, found)) == len(filler.content.wholes)


async def test_one_key_is_found_wherever_it_is(tmp_path: Path) -> None:
    filler = Filler(Random(5), tmp_path / "data", 1, rows=40)
    await filler.open()
    await filler.turns(40)
    copy = killed(filler.path, tmp_path / "copy")
    await filler.close()
    meta = read_meta(copy)
    assert meta is not None
    with open_readers(copy, meta) as (reader,):
        for tenant in ("default", "acme"):
            for namespace in ("trade", "pay"):
                for number in range(60):
                    identity = name(f"k{number}", namespace, tenant)
                    assert reader.find(identity) == filler.content.wholes.get(identity)


def test_a_file_of_the_first_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shard.db"
    format_1.make_file(path)
    with read_shard(path, Held()) as reader:
        assert {whole.entry.identity: whole.entry for whole in reader.wholes()} == format_1.ENTRIES
        assert list(reader.incidents()) == [format_1.LATE]
        assert (list(reader.events()), list(reader.line())) == ([], [])
        assert (reader.last_token, reader.last_incident_id) == (5, 1)


def test_a_journal_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.db"
    create_file(path, 0, 1, 7)
    with (
        pytest.raises(StorageError, match="restored without the other"),
        read_shard(path, Held(8, [Row(9, 0, 8, b"")])),
    ):
        pass
