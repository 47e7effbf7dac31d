"""What stands on disk, damaged: it is read, or refused with a ``StorageError``, and nothing else happens."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from random import Random
from typing import Any, Final

import apsw
import msgpack

from idemactor.core.keys import Identity
from idemactor.errors import StorageError
from idemactor.storage import journal_rows
from idemactor.storage.base import Opened, RecordQuery
from idemactor.storage.sqlite import SqliteEngine
from tests.fuzz.harness import SECONDS, fuzz, seeded
from tests.storage.samples import NOW, Writer

VALUES: Final[list[Any]] = [
    *(None, 0, 1, -1, 7, 2**62, -(2**63), 0.5, float("inf"), "", "x", "[]", "[[1,2]]", "{", "null", '[["a"]]', "[1]"),
    *("[" * 5_000, b"", b"\xff", b"[]", "\x00", '[["a","b","c"]]', '{"a":1}', "nan"),
]
"""What a cell may turn into; the columns of STRICT tables keep their types, but a flipped bit asks no table."""


def test_journal_batches() -> None:
    rng, _ = seeded()
    writer = Writer(rng)
    samples = [journal_rows.encode(writer.batch()) for _ in range(12)]
    words = [msgpack.packb(value) for value in VALUES if value != -(2**63)]

    def target(data: bytes) -> str:
        try:
            batch = journal_rows.decode(data)
        except StorageError as error:
            return f"refused {type(error.__cause__).__name__}"
        return f"{min(3, len(batch.puts))} {min(3, len(batch.deletes))} {min(2, len(batch.tallies))}"

    said = fuzz("journal", target, samples, [*words, b"\x90" * 40, b"\xdd\xff\xff\xff\xff", b"\x81\xa1a\x01"])
    assert len(said) > 5


async def test_cells_of_shard_files(tmp_path: Path) -> None:
    """Any cell of any row changed behind the server's back: the shard answers, or says that its file is damaged."""
    rng, seed = seeded()
    path = tmp_path / "shard.db"
    engine = SqliteEngine(path, create=True, threads="never")
    opened = await engine.open()
    assert isinstance(opened, Opened)
    writer = Writer(Random(seed))
    for _ in range(8):
        batch = writer.batch()
        assert (await engine.commit(batch)).value == "ok"
        writer.disk.apply(batch)
    await engine.close()
    clean = path.read_bytes()
    identities = sorted(writer.used)
    kinds: dict[str, int] = {}
    rounds = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        rounds += 1
        path.write_bytes(clean)
        spoil(path, rng)
        await ask_everything(path, identities, kinds)
    print(f"cells: {rounds} files, {kinds}")
    assert {"fine", "refused"} <= kinds.keys()


def spoil(path: Path, rng: Random) -> None:
    """Write a value into a cell that cannot be there, past what the tables would check."""
    connection = apsw.Connection(str(path))
    connection.pragma("ignore_check_constraints", True)
    connection.execute("PRAGMA writable_schema = ON")
    # Columns without a type take any value, as bytes on a disk do.
    connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '') WHERE type = 'table'")
    connection.execute("PRAGMA writable_schema = RESET")
    tables = ["records", "records", "outcomes", "incidents", "tallies", "meta"]
    table = rng.choice(tables)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    column = rng.choice(columns[1:])
    with contextlib.suppress(apsw.Error):
        connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (rng.choice(VALUES),))
    connection.close()


async def ask_everything(path: Path, identities: list[Identity], kinds: dict[str, int]) -> None:
    engine = SqliteEngine(path, threads="never")
    try:
        await engine.open()
        await engine.alarms(100)
        await engine.load(identities)
        await engine.list_records(RecordQuery("default", "trade", now_ms=NOW), 0, 100)
        for tenant in ("default", "acme"):
            await engine.list_incidents(tenant, "trade", 0, 100)
        await engine.oldest_pending_at()
        kinds["fine"] = kinds.get("fine", 0) + 1
    except StorageError:
        kinds["refused"] = kinds.get("refused", 0) + 1
    finally:
        await engine.close()
