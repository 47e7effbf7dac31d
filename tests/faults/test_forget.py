"""What was forgotten is in none of the files any more, neither in free pages nor in a log of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final, TypeVar

import apsw
import trio

from idemactor.core.commands import Commit, Forget
from idemactor.core.delivery import OMITTED, Kind, NewEvent
from idemactor.core.queries import IncidentsPage, ListIncidents, Query, Take, Taken
from idemactor.core.record import Outcome
from idemactor.core.replies import Committed, Forgotten, Stale
from idemactor.storage.checksums import checked_vfs
from idemactor.storage.directory import DataDirectory
from idemactor.storage.layout import shard_name
from tests.faults.life import EVICT_AFTER_MS, SHARDS, Caller
from tests.faults.test_changed_bytes import life_in, on_mock_time
from tests.shard.harness import NAMESPACE, TENANT, identity

A = TypeVar("A")

KEYS: Final = 60
TWICE: Final = 12
INCIDENTS: Final = ListIncidents(TENANT, NAMESPACE, 0, 1_000)
POLL: Final = Take(NAMESPACE, TENANT, (Kind.EVENT,), 1_000, 30_000, "service")


def marked(number: int, rng: Random) -> bytes:
    """An outcome in which no piece of 24 bytes is without its mark."""
    return f"<secret-{number:03d}>".encode() * rng.choice((1, 4, 60, 900))


def left_in(path: Path, number: int) -> list[str]:
    return sorted(file.name for file in path.iterdir() if f"<secret-{number:03d}>".encode() in file.read_bytes())


def test_what_was_forgotten_is_in_no_file_once_the_shard_has_rested(tmp_path: Path) -> None:
    life = life_in(tmp_path / "data")
    rng = Random(1)

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            for number in range(KEYS):
                key = f"key-{number}"
                await caller.commit(key, await caller.reserve(key), marked(number, rng))
                if number == KEYS // 2:
                    # So that there are some in the files, and some in the journal alone.
                    await trio.sleep(2 * EVICT_AFTER_MS / 1_000)
            there = [number for number in range(KEYS) if left_in(life.path, number)]
            assert there == list(range(KEYS))
            gone = rng.sample(range(KEYS), KEYS // 2)
            for number in gone:
                await caller.forget(f"key-{number}")
                # The work that no answer waits for.
                await trio.sleep(0.01)
                assert left_in(life.path, number) == []
            await caller.look(must_answer=True)
            assert all(left_in(life.path, number) for number in set(range(KEYS)) - set(gone))

    on_mock_time(story)
    life.disk.close()


def test_nor_is_what_its_proofs_and_announcements_held(tmp_path: Path) -> None:
    """They stay: an incident until an operator acknowledges it, an event until somebody fetched it."""
    life = life_in(tmp_path / "data")
    rng = Random(2)

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            for number in range(TWICE):
                await twice(caller, number, rng)
                if number == TWICE // 2:
                    await trio.sleep(2 * EVICT_AFTER_MS / 1_000)
            there = [n for n in range(3 * TWICE) if left_in(life.path, n)]
            assert there == list(range(3 * TWICE))
            for number in range(0, TWICE, 2):
                assert isinstance(await caller.ask(Forget(identity(f"twice-{number}"))), Forgotten)
                await trio.sleep(0.01)
            kept = {mark for number in range(1, TWICE, 2) for mark in range(3 * number, 3 * number + 3)}
            assert {n for n in range(3 * TWICE) if left_in(life.path, n)} == kept
            pages = [await asked(caller, INCIDENTS, shard, IncidentsPage) for shard in range(SHARDS)]
            incidents = {i.identity.key: i for page in pages for _, i in page.rows}
            assert len(incidents) == TWICE
            for number in range(TWICE):
                outcome = incidents[f"twice-{number}"].outcome
                assert outcome is not None
                assert (outcome == Outcome(200, omitted=True)) is (number % 2 == 0)
            polls = [await asked(caller, POLL, shard, Taken) for shard in range(SHARDS)]
            events = {taken.event.identity.key: taken.event.content for poll in polls for taken in poll.events}
            assert len(events) == TWICE
            assert all((events[f"twice-{n}"].headers == (OMITTED,)) is (n % 2 == 0) for n in range(TWICE))

    on_mock_time(story)
    life.disk.close()


async def asked(caller: Caller, query: Query, shard: int, kind: type[A]) -> A:
    call = caller.rig.query(query, shard)
    await call.wait()
    return call.got(kind)


async def twice(caller: Caller, number: int, rng: Random) -> None:
    """An operation that succeeded twice: the late outcome, the one that counts and an event have a mark each."""
    key = f"twice-{number}"
    first = await caller.reserve(key, lease_ms=1_000)
    await trio.sleep(2)
    second = await caller.reserve(key)
    assert first is not None
    assert second is not None
    late, done, told = (marked(3 * number + which, rng) for which in range(3))
    assert isinstance(await caller.ask(Commit(identity(key), first, Outcome(200, (), late))), Stale)
    event = NewEvent("text/plain", told, (("x-secret", told.decode()),))
    committed = await caller.ask(Commit(identity(key), second, Outcome(200, (), done), events=(event,)))
    assert isinstance(committed, Committed)
    caller.allowed.pop(key)


def test_while_another_program_reads_an_older_state_it_waits_and_is_done_afterwards(tmp_path: Path) -> None:
    life = life_in(tmp_path / "data")

    async def story() -> None:
        with DataDirectory.open(life.path, SHARDS):
            pass
        async with life.running() as caller:
            await caller.commit("key", await caller.reserve("key"), marked(1, Random(1)))
            readers = [apsw.Connection(str(life.path / shard_name(n)), vfs=checked_vfs()) for n in range(SHARDS)]
            for reader in readers:
                reader.execute("BEGIN; SELECT count(*) FROM records").fetchall()
            await caller.forget("key")
            await trio.sleep(0.01)
            await caller.look(must_answer=True)
            for reader in readers:
                reader.close()
            # Whatever the shard does next.
            for number in range(8):
                await caller.reserve(f"other-{number}")
            await trio.sleep(0.01)
            assert left_in(life.path, 1) == []

    on_mock_time(story)
    life.disk.close()
