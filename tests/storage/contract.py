"""What every engine promises (``storage/base.py``), as tests: each engine's test module runs all of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Protocol

import pytest

from idemactor.core.delivery import Delivery, Ending, Intent, Kind
from idemactor.core.keys import Identity
from idemactor.core.record import Entry, Incident, Outcome, State, Tombstone
from idemactor.core.tally import Tally
from idemactor.errors import StorageError
from idemactor.storage.base import Batch, CommitResult, Engine, Open, Opened, RecordQuery, StateFilter
from idemactor.storage.memory import MemoryEngine
from tests.storage.samples import INTENT, NOW, Writer, committed, dispatched, event, name, operation, pending, picture


class Disk(Protocol):
    """Something that outlives engines."""

    def engine(self) -> Engine:
        """A new engine on this disk, as after a restart of the process."""


async def put(engine: Engine, *entries: Entry, **fields: object) -> None:
    """Commit a batch of entries, which must succeed."""
    last_token = max((entry.id for entry in entries), default=0)
    batch = Batch(NOW, last_token, puts=list(entries), **fields)  # type: ignore[arg-type]
    assert await engine.commit(batch) is CommitResult.OK


def incident(token: int, key: str = "k", namespace: str = "trade", outcome: Outcome | None = None) -> Incident:
    """An incident, most of it the usual."""
    return Incident(name(key, namespace), "operation", token, None, NOW, outcome)


class EngineContract:
    """Subclasses give the fixture ``disk``."""

    @pytest.fixture
    async def engine(self, disk: Disk) -> Engine:
        engine = disk.engine()
        await engine.open()
        return engine

    async def test_a_new_disk_is_empty(self, disk: Disk) -> None:
        engine = disk.engine()
        assert await engine.open() == Opened(0, 0, {})
        assert await engine.load([name("k")]) == {}
        assert await engine.alarms(10) == []
        assert await engine.oldest_pending_at() is None

    @pytest.mark.parametrize("seed", range(8))
    async def test_what_was_committed_is_there_whoever_asks(self, disk: Disk, seed: int) -> None:
        writer = Writer(Random(seed))
        engine, reference = disk.engine(), MemoryEngine(writer.disk)
        await engine.open()
        for step in range(30):
            batch = writer.batch()
            assert await engine.commit(batch) is CommitResult.OK
            writer.disk.apply(batch)
            if step % 10 == 4:
                await engine.close()
            if step % 10 == 9:
                await engine.close()
                engine = disk.engine()
            if step % 10 in (4, 7, 9):
                opened = await (engine.reopen() if step % 10 == 7 else engine.open())
                expected = await picture(reference, await reference.open(), writer.used)
                assert await picture(engine, opened, writer.used) == expected, f"seed {seed}, step {step}"

    async def test_only_what_was_asked_for_is_loaded_and_nothing_that_looks_alike(self, engine: Engine) -> None:
        alike = [Identity("a", "b", "cd"), Identity("a", "bc", "d"), Identity("ab", "c", "d"), Identity("a", "b", "CD")]
        entries = [pending(number + 1, identity) for number, identity in enumerate(alike)]
        await put(engine, *entries)
        for entry in entries:
            assert await engine.load([entry.identity, name("nobody")]) == {entry.identity: entry}
        assert await engine.load([]) == {}
        assert await engine.load(alike + alike) == {entry.identity: entry for entry in entries}

    async def test_a_put_replaces_all_of_an_entry(self, engine: Engine) -> None:
        identity = name("k")
        await put(engine, committed(1, identity, outcome=Outcome(200, (("a", "b"),), b"x" * 10_000)))
        later = committed(1, identity, outcome=Outcome(204), contested=True)
        await put(engine, later)
        assert await engine.load([identity]) == {identity: later}
        buried = Entry(1, identity, None, Tombstone(1, "r", "o", NOW + 5), NOW + 5)
        await put(engine, buried)
        assert await engine.load([identity]) == {identity: buried}
        again = pending(1, identity, token=2)
        await put(engine, again)
        assert await engine.load([identity]) == {identity: again}

    async def test_a_delete_takes_everything_along(self, engine: Engine) -> None:
        entry = committed(1, name("k"))
        await put(engine, entry)
        never = pending(2, name("never written"))
        await put(engine, deletes=[entry, never])
        assert await engine.load([name("k")]) == {}
        assert await engine.alarms(10) == []
        await put(engine, pending(3, name("k")))
        assert (await engine.load([name("k")]))[name("k")].id == 3

    async def test_a_key_may_be_deleted_and_back_in_one_batch(self, engine: Engine) -> None:
        old, new = committed(1, name("k")), pending(2, name("k"))
        await put(engine, old)
        await put(engine, new, deletes=[old])
        assert await engine.load([name("k")]) == {name("k"): new}

    async def test_token_and_time_never_go_back(self, disk: Disk, engine: Engine) -> None:
        assert await engine.commit(Batch(NOW, 7)) is CommitResult.OK
        assert await engine.commit(Batch(NOW - 5, 6)) is CommitResult.OK
        await engine.close()
        assert replace(await disk.engine().open(), journal_seq=0) == Opened(7, NOW, {})

    async def test_tallies_are_absolute_and_those_of_nothing_are_dropped(self, disk: Disk, engine: Engine) -> None:
        counting = Tally(records=3, pending=1, in_doubt=1, committed=1, contested=1, incidents=2)
        await put(engine, tallies={("a", "b"): counting, ("a", "c"): Tally(records=1)})
        stored = replace(counting)
        # The shard goes on counting in the object it handed over.
        counting.records = 99
        await put(engine, tallies={("a", "c"): Tally()})
        await engine.close()
        assert (await disk.engine().open()).tallies == {("a", "b"): stored}

    async def test_what_open_said_is_not_what_the_disk_keeps(self, engine: Engine) -> None:
        await put(engine, tallies={("a", "b"): Tally(records=1)})
        (await engine.reopen()).tallies[("a", "b")].records = 99
        assert (await engine.reopen()).tallies == {("a", "b"): Tally(records=1)}

    async def test_incidents_are_one_a_token_and_ids_are_never_used_again(self, engine: Engine) -> None:
        late = Outcome(200, (("content-type", "x"),), b"\x00\xff")
        await put(engine, incidents=[incident(1), incident(2, outcome=late), incident(1, outcome=late)])
        first, second = await engine.list_incidents("default", "trade", 0, 10)
        assert (first.incident, second.incident) == (incident(1), incident(2, outcome=late))
        assert first.id < second.id
        await put(engine, incidents=[incident(2)])
        assert await engine.find_incident(second.id) == second
        await put(engine, acknowledged=[second.id, 12345])
        assert await engine.find_incident(second.id) is None
        await put(engine, incidents=[incident(3)])
        assert [stored.incident.token for stored in await engine.list_incidents("default", "trade", 0, 10)] == [1, 3]
        assert (await engine.list_incidents("default", "trade", first.id, 10))[0].id > second.id

    async def test_one_token_of_two_keys_may_leave_two_incidents(self, engine: Engine) -> None:
        """Where shards were merged, two keys may have been granted the same token."""
        await put(engine, incidents=[incident(1)])
        await put(engine, incidents=[incident(1, key="other"), incident(1)])
        found = await engine.list_incidents("default", "trade", 0, 10)
        assert [stored.incident for stored in found] == [incident(1), incident(1, key="other")]

    async def test_what_is_acknowledged_does_not_come_back_in_the_same_batch(self, engine: Engine) -> None:
        await put(engine, incidents=[incident(1)])
        (stored,) = await engine.list_incidents("default", "trade", 0, 10)
        await put(engine, incidents=[incident(1)], acknowledged=[stored.id])
        assert await engine.list_incidents("default", "trade", 0, 10) == []

    async def test_incidents_are_listed_by_owner_and_page(self, engine: Engine) -> None:
        await put(engine, incidents=[incident(token, namespace=("trade", "pay")[token % 2]) for token in range(1, 9)])
        assert await engine.list_incidents("acme", "trade", 0, 10) == []
        page = await engine.list_incidents("default", "trade", 0, 3)
        rest = await engine.list_incidents("default", "trade", page[-1].id, 3)
        assert [stored.incident.token for stored in page + rest] == [2, 4, 6, 8]

    async def test_alarms_come_in_order_of_time(self, engine: Engine) -> None:
        times = [NOW + 30, NOW + 10, None, NOW + 20, NOW + 10]
        entries = [replace(pending(n + 1, name(f"k{n}")), alarm_at=at) for n, at in enumerate(times)]
        await put(engine, *entries)
        expected = [(NOW + 10, name("k1")), (NOW + 10, name("k4")), (NOW + 20, name("k3")), (NOW + 30, name("k0"))]
        assert await engine.alarms(10) == expected
        assert await engine.alarms(2) == expected[:2]
        await put(engine, replace(entries[1], alarm_at=None))
        assert await engine.alarms(1) == expected[1:2]

    async def test_listings_filter_by_state_as_time_has_it(self, engine: Engine) -> None:
        entries = [
            pending(1, name("running")),
            pending(2, name("lease over"), lease_expires_at=NOW),
            pending(3, name("lapsed"), state=State.LAPSED),
            pending(4, name("doubted"), state=State.DOUBTED),
            committed(5, name("committed"), outcome=None),
            committed(6, name("expired"), expires_at=NOW, outcome=None),
            Entry(7, name("buried"), None, Tombstone(7, None, "o", NOW + 1), NOW + 1),
            pending(8, name("given up, perhaps"), state=State.LAPSED, unresolved_expires_at=NOW - 1),
            pending(9, name("running", namespace="pay")),
            pending(10, name("running", tenant="acme")),
        ]
        await put(engine, *entries)
        wanted = {
            None: [1, 2, 3, 4, 5, 8],
            StateFilter.PENDING: [1],
            StateFilter.IN_DOUBT: [2, 3, 4, 8],
            StateFilter.COMMITTED: [5],
        }
        for state, ids in wanted.items():
            query = RecordQuery("default", "trade", NOW, state)
            found = await engine.list_records(query, 0, 100)
            assert found == [entry for entry in entries if entry.id in ids], state

    async def test_listings_filter_by_contest_and_age(self, engine: Engine) -> None:
        entries = [
            pending(1, name("a"), contested=True, reserved_at=NOW - 10),
            pending(2, name("b"), reserved_at=NOW - 10),
            committed(3, name("c"), contested=True, reserved_at=NOW - 9),
        ]
        await put(engine, *entries)

        async def ids(**fields: object) -> list[int]:
            query = RecordQuery("default", "trade", NOW, **fields)  # type: ignore[arg-type]
            return [entry.id for entry in await engine.list_records(query, 0, 100)]

        assert await ids(contested=True) == [1, 3]
        assert await ids(contested=False) == [2]
        assert await ids(contested=True, state=StateFilter.COMMITTED) == [3]
        assert await ids(contested=True, state=StateFilter.PENDING) == [1]
        assert await ids(reserved_before_ms=NOW - 9) == [1, 2]
        assert await ids(reserved_before_ms=NOW - 10) == []

    async def test_listings_are_paged_by_id_and_leave_outcomes_out(self, engine: Engine) -> None:
        entries = [committed(n, name(f"k{n}")) for n in range(1, 8)]
        await put(engine, *reversed(entries))
        query = RecordQuery("default", "trade", NOW)
        pages = [await engine.list_records(query, after_id, 3) for after_id in (0, 3, 6, 7)]
        assert [[entry.id for entry in page] for page in pages] == [[1, 2, 3], [4, 5, 6], [7], []]
        assert all(entry.record and entry.record.outcome is None for entry in pages[0])
        loaded = await engine.load([name("k1")])
        assert loaded[name("k1")] == entries[0]

    async def test_listings_show_what_waits_to_be_delivered_as_pending(self, engine: Engine) -> None:
        entries = [
            dispatched(1, name("queued")),
            dispatched(2, name("delivering"), attempt=1, lease_expires_at=NOW + 5),
            dispatched(3, name("lease over"), attempt=1, lease_expires_at=NOW),
            dispatched(4, name("in doubt"), state=State.DOUBTED),
        ]
        await put(engine, *entries, intents=dict.fromkeys(range(1, 5), INTENT))
        for state, ids in {None: [1, 2, 3, 4], StateFilter.PENDING: [1, 2], StateFilter.IN_DOUBT: [3, 4]}.items():
            found = await engine.list_records(RecordQuery("default", "trade", NOW, state), 0, 100)
            assert found == [entry for entry in entries if entry.id in ids], state
        assert await engine.oldest_pending_at() == NOW

    async def test_an_intent_stays_as_it_came_while_its_delivery_changes(self, disk: Disk, engine: Engine) -> None:
        first = dispatched(1, name("k"))
        intent = Intent("a/b", b"\x00\xff", (("x", "\ud800"), ("x", "")))
        await put(engine, first, intents={1: intent})
        assert first.record is not None
        assert first.record.delivery is not None
        changes = (
            replace(first.record.delivery, due_at=None, perhaps_sent=True),
            replace(first.record.delivery, due_at=NOW + 7, seq=9, order_key="", deliver_until=2**53),
            replace(first.record.delivery, due_at=None, ending=Ending.FAILED),
        )
        for delivery in changes:
            entry = replace(first, record=replace(first.record, delivery=delivery))
            await put(engine, entry)
            assert await engine.load([name("k")]) == {name("k"): entry}
            assert await engine.load_ids([1, 2]) == {1: entry}
            assert await engine.load_intents([1, 2]) == {1: intent}
        await engine.close()
        engine = disk.engine()
        await engine.open()
        assert await engine.load_ids([1]) == {1: entry}
        assert await engine.load_intents([1]) == {1: intent}

    async def test_intent_and_delivery_go_with_their_entry(self, engine: Engine) -> None:
        entry = dispatched(1, name("k"))
        await put(engine, entry, intents={1: INTENT})
        await put(engine, deletes=[entry])
        assert (await engine.load_ids([1]), await engine.load_intents([1]), await engine.outbox(0, 1_000)) == (
            {},
            {},
            [],
        )
        assert await engine.find_operation("default", "trade", operation(1)) is None

    async def test_an_entry_may_lose_its_delivery_and_get_another(self, engine: Engine) -> None:
        await put(engine, dispatched(1, name("k")), intents={1: INTENT})
        released = Tombstone(1, None, operation(1), NOW + 9, ending=Ending.RELEASED)
        await put(engine, Entry(1, name("k"), None, released, NOW + 9), undelivered=[1])
        assert (await engine.load_intents([1]), await engine.outbox(0, 1_000)) == ({}, [])
        assert await engine.find_operation("default", "trade", operation(1)) == name("k")
        again = replace(dispatched(1, name("k"), operation_id=operation(2)), tombstone=released)
        await put(engine, again, intents={1: INTENT})
        assert await engine.load([name("k")]) == {name("k"): again}
        for operation_id in (operation(1), operation(2)):
            assert await engine.find_operation("default", "trade", operation_id) == name("k")
        third, other = dispatched(1, name("k"), operation_id=operation(3)), Intent("", b"other")
        await put(engine, third, undelivered=[1], intents={1: other})
        assert await engine.load_ids([1]) == {1: third}
        assert await engine.load_intents([1]) == {1: other}
        assert [each.id for each in await engine.outbox(0, 1_000)] == [1]
        assert await engine.find_operation("default", "trade", operation(2)) is None

    async def test_an_operation_is_found_by_its_owner_alone_and_only_if_dispatched(self, engine: Engine) -> None:
        done = Delivery(7, None, None, NOW, ending=Ending.SUCCEEDED)
        plain = Tombstone(3, None, "released plainly", NOW + 9)
        await put(
            engine,
            committed(1, name("done"), delivery=done),
            pending(2, name("reserved")),
            Entry(3, name("released"), None, plain, NOW + 9),
        )
        assert await engine.find_operation("default", "trade", operation(1)) == name("done")
        for asked in (
            ("default", "pay", operation(1)),
            ("acme", "trade", operation(1)),
            ("default", "trade", operation(2)),
            ("default", "trade", "released plainly"),
            ("default", "trade", "nobody's"),
        ):
            assert await engine.find_operation(*asked) is None

    async def test_the_outbox_has_what_has_not_ended_in_order(self, disk: Disk, engine: Engine) -> None:
        def entry(entry_id: int, seq: int, order_key: str | None = None, **changes: object) -> Entry:
            ending = Ending.SUCCEEDED if changes.get("state") is State.COMMITTED else None
            due_at = changes.pop("due_at", None)
            delivery = Delivery(seq, order_key, due_at, NOW + 9, ending=ending)  # type: ignore[arg-type]
            return dispatched(entry_id, name(f"k{entry_id}"), delivery=delivery, **changes)

        entries = [
            entry(1, 50, due_at=NOW + 3),
            entry(2, 40, "account", attempt=1, lease_expires_at=NOW + 5),
            entry(3, 30, state=State.DOUBTED),
            entry(4, 20, "account", state=State.DOUBTED, lease_expires_at=NOW),
            entry(5, 10, "account", state=State.COMMITTED, committed_at=NOW, expires_at=NOW + 5),
            entry(6, 35, state=State.LAPSED, lease_expires_at=NOW - 1),
            pending(7, name("reserved")),
        ]
        events = [event(45, order_key="account"), event(5, name("e", namespace="pay", tenant="acme"))]
        await put(engine, *entries, intents=dict.fromkeys(range(1, 7), INTENT), events=events)
        trade = ("default", "trade")
        expected = [
            Open(Kind.EVENT, 5, "acme", "pay", 5, None, State.PENDING, None, NOW, None),
            Open(Kind.INTENT, 4, *trade, 20, "account", State.DOUBTED, NOW, None, None),
            Open(Kind.INTENT, 6, *trade, 35, None, State.LAPSED, NOW - 1, None, None),
            Open(Kind.INTENT, 2, *trade, 40, "account", State.PENDING, NOW + 5, None, None),
            Open(Kind.EVENT, 45, *trade, 45, "account", State.PENDING, None, NOW, None),
            Open(Kind.INTENT, 1, *trade, 50, None, State.PENDING, None, NOW + 3, None),
        ]
        assert await engine.outbox(0, 1_000) == expected
        await engine.close()
        engine = disk.engine()
        await engine.open()
        assert await engine.outbox(0, 1_000) == expected

    async def test_events_stay_until_they_are_acknowledged(self, disk: Disk, engine: Engine) -> None:
        first = event(1, name("größer"), headers=(("a", "\ud800"),), body=b"\x00\xff", order_key="")
        await put(engine, events=[first, event(2)])
        assert await engine.load_events([1, 2, 3]) == {1: first, 2: event(2)}
        await put(engine, events=[event(3), event(4)], acked=[2, 4, 12345])
        await engine.close()
        engine = disk.engine()
        await engine.open()
        assert await engine.load_events([1, 2, 3, 4]) == {1: first, 3: event(3)}
        assert [each.seq for each in await engine.outbox(0, 1_000)] == [1, 3]

    async def test_what_is_emptied_stays_and_holds_nothing(self, disk: Disk, engine: Engine) -> None:
        late = Outcome(201, (("content-type", "x"),), b"secret")
        mine, other = event(1, headers=(("a", "b"),), order_key="line"), event(2, name("other"))
        await put(engine, incidents=[incident(1, outcome=late), incident(2, "other", outcome=late), incident(3)])
        await put(engine, events=[mine, other])
        before = await engine.list_incidents("default", "trade", 0, 10)
        again, newer = event(3), incident(4, outcome=late)
        await put(engine, emptied=[name("k")], events=[again], incidents=[newer])
        await engine.close()
        engine = disk.engine()
        await engine.open()
        assert await engine.load_events([1, 2, 3]) == {1: mine.emptied(), 2: other, 3: again}
        after = await engine.list_incidents("default", "trade", 0, 10)
        assert [each.id for each in after[:3]] == [each.id for each in before]
        outcomes = [each.incident.outcome for each in after]
        assert outcomes == [Outcome(201, omitted=True), late, None, late]
        assert [each.order_key for each in await engine.outbox(0, 10)] == ["line", None, None]

    async def test_the_oldest_pending_is_pending_or_lapsed(self, engine: Engine) -> None:
        await put(
            engine,
            pending(1, name("doubted"), state=State.DOUBTED, reserved_at=NOW - 9),
            committed(2, name("committed"), reserved_at=NOW - 8),
            pending(3, name("lapsed"), state=State.LAPSED, reserved_at=NOW - 7),
            pending(4, name("running"), reserved_at=NOW - 6),
        )
        assert await engine.oldest_pending_at() == NOW - 7
        await put(engine, committed(3, name("lapsed"), reserved_at=NOW - 7))
        assert await engine.oldest_pending_at() == NOW - 6

    async def test_before_open_and_after_close_nothing_works(self, disk: Disk) -> None:
        engine = disk.engine()
        for _ in range(2):
            assert await engine.commit(Batch(NOW, 1, puts=[pending(1, name("k"))])) is CommitResult.FAILED
            assert await engine.confirm() is CommitResult.FAILED
            with pytest.raises(StorageError):
                await engine.load([name("k")])
            for question in (
                engine.alarms(1),
                engine.outbox(0, 1_000),
                engine.load_ids([]),
                engine.load_intents([]),
                engine.load_events([]),
                engine.find_operation("default", "trade", "operation"),
            ):
                with pytest.raises(StorageError):
                    await question
            await engine.open()
            assert await engine.confirm() is CommitResult.OK
            assert await engine.load([name("k")]) == {}
            await engine.close()

    async def test_the_largest_values_come_back_exactly(self, engine: Engine) -> None:
        largest = 2**53 - 1
        body = Random(1).randbytes(1_048_576)
        entry = committed(largest, name("🦀" * 256), outcome=Outcome(599, (("n", "v" * 9_000),), body), ttl_ms=2**62)
        await put(engine, entry)
        assert await engine.load([entry.identity]) == {entry.identity: entry}
