"""Filling a data directory in bulk, past the server: a million keys in seconds, ten million in minutes.

The rows are those that the server itself would have written (``idemactor.storage.rows``); indexes are made afterwards.
``python -m bench.fill SPEC`` fills the shards that it is told to, so that every core can have its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import apsw

from bench.processes import die_with_parent, output_of
from idemactor.core.delivery import Delivery
from idemactor.core.ids import ENTROPY_BITS, uuid7
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.record import Entry, Record, State
from idemactor.core.tally import Tally
from idemactor.storage import rows, schema
from idemactor.storage.checksums import checked_vfs
from idemactor.storage.directory import DataDirectory

TENANT: Final = "default"
NAMESPACE: Final = "default"
_COLUMNS: Final = schema.ENTRY_COLUMNS
_ID, _HASH, _KEY = (_COLUMNS.index(name) for name in ("id", "hash", "key"))
_ALARM_AT, _EXPIRES_AT = (_COLUMNS.index(name) for name in ("alarm_at", "expires_at"))
_TOKEN, _OPERATION_ID = (_COLUMNS.index(name) for name in ("token", "operation_id"))
_ENTROPY_MASK: Final = (1 << ENTROPY_BITS) - 1
INTENT: Final = b'{"account": "1", "quantity": "0.001", "side": "buy", "symbol": "BTCUSDT"}'
"""Of the size of an order."""
_DELIVERIES: Final = """
INSERT INTO deliveries (id, operation_id, seq, due_at, deliver_until, perhaps_sent)
SELECT id, operation_id, (:committed_at - :keys) * 1000 + id * :shards + :shard, :due_at, :expires_at, 0 FROM records
"""
"""Each has a place in line of its own, over all shards, and before everything that is accepted from now on."""
_INTENTS: Final = (
    "INSERT INTO intents (id, content_type, headers, body) SELECT id, 'application/json', '[]', ? FROM records"
)
_SELECT_INDEXES: Final = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Filling:
    """What to put into a directory.

    Attributes:
        keys: How many, over all shards.
        shards: How many the directory has.
        only: The shards that this process fills.
        committed_at: When all of them were committed, milliseconds since the epoch.
        expires_at: When the first one expires.
        spread_ms: The last one expires so much later.
        due_at: When all of them are to be delivered, where they are operations that wait; 0: they were committed.
    """

    directory: str
    keys: int
    shards: int
    only: tuple[int, ...]
    committed_at: int
    expires_at: int
    spread_ms: int
    due_at: int = 0

    @property
    def namespace(self) -> str:
        """Operations that wait are in the namespace that delivers."""
        return "orders" if self.due_at else NAMESPACE


def fill(filling: Filling) -> None:
    """Make the directory and fill it, on as many cores as there are.

    Raises:
        BenchError: A process that fills failed.
    """
    with DataDirectory.open(Path(filling.directory), filling.shards):
        pass
    workers = min(os.cpu_count() or 1, filling.shards)
    parts = [replace(filling, only=tuple(range(worker, filling.shards, workers))) for worker in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(_fill_elsewhere, parts))


def set_time(directory: Path, latest_ms: int) -> None:
    """Let the directory's latest time be ``latest_ms``: a server that starts on it goes on from there."""
    for path in sorted(directory.glob("shard-*.db")):
        connection = apsw.Connection(str(path), vfs=checked_vfs())
        connection.execute("UPDATE meta SET latest_ms = ?", (latest_ms,))
        connection.close()


def _fill_elsewhere(part: Filling) -> None:
    output_of([sys.executable, "-m", "bench.fill", json.dumps(asdict(part))])


def _fill_here(filling: Filling) -> None:
    for shard in filling.only:
        _fill_shard(filling, shard)


def _fill_shard(filling: Filling, shard: int) -> None:
    # A page that is written past the checksum VFS would look damaged.
    connection = apsw.Connection(str(Path(filling.directory) / f"shard-{shard:04d}.db"), vfs=checked_vfs())
    connection.pragma("journal_mode", "OFF")
    connection.pragma("synchronous", "OFF")
    indexes = list(connection.execute(_SELECT_INDEXES))
    with connection:
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        connection.executemany(schema.UPSERT_ENTRY, _rows(filling, shard))
        if filling.due_at:
            connection.execute(_DELIVERIES, {**asdict(filling), "shard": shard})
            connection.execute(_INTENTS, (INTENT,))
        count: int = connection.execute("SELECT count(*) FROM records").get
        for _, sql in indexes:
            connection.execute(sql)
        tally = Tally(count, pending=count) if filling.due_at else Tally(count, committed=count)
        connection.execute(schema.UPSERT_TALLY, rows.tally_row((TENANT, filling.namespace), tally))
        connection.execute(schema.UPDATE_META, (count, filling.committed_at, 0))
    connection.pragma("journal_mode", "WAL")
    connection.close()
    with open(Path(filling.directory) / f"shard-{shard:04d}.db", "rb") as file:
        os.fsync(file.fileno())


def _rows(filling: Filling, shard: int) -> Iterator[Sequence[Any]]:
    """The rows of one shard: a record as it is after reserve and commit without an outcome.

    Building ten million entries takes minutes; of one row only what differs is replaced.
    """
    row = _model_row(filling)
    first, length, keys, shards = filling.expires_at, filling.spread_ms, filling.keys, filling.shards
    token = 0
    for number in range(keys):
        key = f"filled-{number}"
        hashed = identity_hash(Identity(TENANT, filling.namespace, key))
        if shard_of(hashed, shards) != shard:
            continue
        token += 1
        row[_ID] = row[_TOKEN] = token
        row[_HASH] = hashed
        row[_KEY] = key
        row[_ALARM_AT] = first + number * length // keys
        if not filling.due_at:
            row[_EXPIRES_AT] = row[_ALARM_AT]
        row[_OPERATION_ID] = uuid7(filling.committed_at, hashed & _ENTROPY_MASK)
        yield row


def _model_row(filling: Filling) -> list[Any]:
    at = filling.committed_at
    record = Record(State.COMMITTED, 1, 1, "", first_seen_at=at, reserved_at=at, committed_at=at, expires_at=at)
    if filling.due_at:
        delivery = Delivery(0, None, filling.due_at, filling.expires_at)
        record = Record(State.PENDING, 0, 1, "", first_seen_at=at, reserved_at=at, delivery=delivery)
    return list(rows.entry_row(Entry(1, Identity(TENANT, filling.namespace, ""), record, None, at)))


if __name__ == "__main__":
    die_with_parent()
    given = json.loads(sys.argv[1])
    _fill_here(Filling(**{**given, "only": tuple(given["only"])}))
