"""One shard's SQLite file: its tables in a ``WalFile``. Everything of ``sqlite.py`` that blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import apsw

from idemactor.core.tally import Tally
from idemactor.errors import DamagedError, OutOfReach, UnfitError
from idemactor.storage import schema, sqlite_writes
from idemactor.storage.base import Batch, CommitResult, Opened
from idemactor.storage.sealing import Keyring, check_keys
from idemactor.storage.sqlite_create import check_version, create_file, upgrade
from idemactor.storage.sqlite_wal import Durability, WalFile, missing
from idemactor.storage.ways_out import NOT_ALONE


@dataclass(frozen=True, slots=True)
class Place:
    """Which file, and which shard it must be.

    Attributes:
        path: The database file; SQLite keeps ``-wal`` and ``-shm`` beside it.
        shard: The shard that the file must say it is.
        shards: The number of shards it must say there are.
        create: Make it where there is nothing. Off: a missing file is an error, never an empty shard.
        durability: ``full`` survives a power loss, ``process`` a kill.
        vfs: The name of an apsw VFS, None for the one with checksums.
        keys: What callers stored is sealed with them.
        as_is: Whether it may hold what ``keys`` cannot open: it is only copied.
        checksums: Whether its header must say that its pages have checksums; None: it says so itself.
    """

    path: Path
    shard: int = 0
    shards: int = 1
    create: bool = False
    durability: Durability = "full"
    vfs: str | None = None
    keys: Keyring | None = None
    as_is: bool = False
    checksums: bool | None = None


class ShardFile(WalFile[Opened]):
    """The connection to one shard's file."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.path, place.durability, place.vfs, place.checksums)
        self._place = place
        self._last_token = 0
        self._delivers = False

    def write(self, batch: Batch) -> CommitResult:
        """Write a batch as one transaction, see ``transact``."""
        delivers = self._delivers

        def work(connection: apsw.Connection) -> None:
            nonlocal delivers
            delivers = sqlite_writes.apply(connection, batch, self._last_token, delivers, self._place.keys)

        result = self.transact(work)
        if result is CommitResult.OK:
            self._last_token = max(self._last_token, batch.last_token)
            self._delivers = delivers
        return result

    def _create(self) -> None:
        if not self._place.create:
            raise missing(self._name)
        create_file(self._place.path, self._place.shard, self._place.shards)

    def _greet(self, connection: apsw.Connection) -> None:
        check_version(connection, self._name)

    def _read_state(self, connection: apsw.Connection) -> Opened:
        meta = connection.execute(schema.SELECT_META).fetchone()
        if meta is None:
            raise DamagedError(f"{self._name} has lost its meta row; {NOT_ALONE}")
        _, shard, shards, last_token, latest_ms, journal_seq = meta
        place = self._place
        if (shard, shards) != (place.shard, place.shards):
            raise UnfitError(
                f"{self._name} is shard {shard} of {shards}, not {place.shard} of {place.shards};"
                " put each file back under its own name"
            )
        tallies = {(row[0], row[1]): Tally(*row[2:]) for row in connection.execute(schema.SELECT_TALLIES)}
        self._last_token = last_token
        return Opened(last_token, latest_ms, tallies, journal_seq)

    def _settle(self, connection: apsw.Connection, recovering: bool) -> None:
        super()._settle(connection, recovering)
        # Only now: what is appended to a WAL that never reached the disk is lost with it.
        upgrade(connection)
        for headers, body in () if self._place.as_is else connection.execute(schema.SELECT_SEALED):
            try:
                check_keys(self._place.keys, headers, body)
            except OutOfReach as error:
                raise OutOfReach(f"{self._name}: {error}") from None
        self._delivers = bool(connection.execute(schema.HAS_DELIVERIES).get)

    def _touch(self, connection: apsw.Connection) -> None:
        connection.execute(schema.TOUCH_META)
