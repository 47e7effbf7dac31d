"""Batches merged and written once leave what they would have left one by one."""

from __future__ import annotations

import copy
from random import Random

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idemactor.core.delivery import Ending
from idemactor.core.record import Entry, Incident, Outcome, Tombstone
from idemactor.core.tally import Tally
from idemactor.errors import StorageError
from idemactor.storage import journal_rows
from idemactor.storage.base import Batch, Opened
from idemactor.storage.journal_rows import decode, encode
from idemactor.storage.memory import MemoryDisk
from idemactor.storage.overlay import Overlay
from tests.storage.samples import INTENT, NOW, Writer, committed, dispatched, event, name, operation, pending


def kept(disk: MemoryDisk) -> tuple[object, ...]:
    return (
        disk.entries,
        disk.ids,
        disk.incidents,
        disk.tallies,
        disk.last_token,
        disk.latest_ms,
        disk.intents,
        disk.events,
    )


def write(overlay: Overlay, disk: MemoryDisk) -> Overlay:
    disk.apply(overlay.merged())
    return Overlay()


def check_outbox(writer: Writer, overlay: Overlay, behind: MemoryDisk) -> None:
    """By id, and of intents and events, overlay and file together tell what one disk would."""
    ids, seqs = range(1, writer.token + 2), range(1, writer.seq + 2)
    entries, unknown = overlay.look_up_ids(ids)
    assert entries | {i: behind.entries[i] for i in unknown if i in behind.entries} == writer.disk.entries
    intents, unknown = overlay.look_up_intents(ids)
    assert intents | {i: behind.intents[i] for i in unknown if i in behind.intents} == writer.disk.intents
    events, unknown = overlay.look_up_events(seqs)
    below = {i: behind.events[i] for i in unknown if i in behind.events}
    assert events | overlay.emptied(below) == writer.disk.events


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.booleans(), min_size=1, max_size=12))
def test_merged_is_as_one_by_one(rng: Random, writes: list[bool]) -> None:
    writer, behind, overlay = Writer(rng), MemoryDisk(), Overlay()
    for write_now in writes:
        batch = writer.batch()
        writer.disk.apply(batch)
        # Also through the journal and back, which keeps of a deleted entry only who it was.
        batch = decode(encode(batch))
        if not overlay.fits(batch):
            overlay = write(overlay, behind)
        overlay.add(batch)
        seen, unknown = overlay.look_up(sorted(writer.used))
        seen |= {identity: behind.entries[behind.ids[identity]] for identity in unknown if identity in behind.ids}
        assert seen == {identity: writer.disk.entries[i] for identity, i in writer.disk.ids.items()}
        check_outbox(writer, overlay, behind)
        if write_now:
            overlay = write(overlay, behind)
            assert kept(behind) == kept(writer.disk)
    write(overlay, behind)
    assert kept(behind) == kept(writer.disk)


def overlaid(*batches: Batch) -> Overlay:
    overlay = Overlay()
    for batch in batches:
        assert overlay.fits(batch)
        overlay.add(batch)
    return overlay


def test_an_id_that_was_deleted_and_is_back_is_only_put() -> None:
    old, new = committed(1, name("k")), pending(1, name("k"), token=2)
    overlay = overlaid(Batch(NOW, 1, deletes=[old]), Batch(NOW, 2, puts=[new]))
    merged = overlay.merged()
    assert (merged.puts, merged.deletes) == ([new], [])
    assert overlay.look_up([name("k")]) == ({name("k"): new}, [])


def test_a_key_that_is_back_under_another_id_is_deleted_and_put() -> None:
    old, new = committed(1, name("k")), pending(2, name("k"))
    merged = overlaid(Batch(NOW, 2, puts=[new], deletes=[old])).merged()
    assert (merged.puts, merged.deletes) == ([new], [old])


def test_what_came_and_went_is_only_deleted_and_not_asked_for() -> None:
    entry = pending(1, name("k"))
    overlay = overlaid(Batch(NOW, 1, puts=[entry]), Batch(NOW + 1, 1, deletes=[entry]))
    assert len(overlay) == 1
    assert overlay.look_up([name("k"), name("other")]) == ({}, [name("other")])
    merged = overlay.merged()
    assert (merged.puts, merged.deletes, merged.now_ms, merged.last_token) == ([], [entry], NOW + 1, 1)


def test_a_key_counts_once_however_often_it_changes() -> None:
    overlay = overlaid(*(Batch(NOW, n, puts=[pending(1, name("k"), token=n)]) for n in range(1, 9)))
    assert (len(overlay), overlay.batches) == (1, 8)


def test_time_and_token_never_go_back() -> None:
    merged = overlaid(Batch(NOW, 7), Batch(NOW - 5, 6)).merged()
    assert (merged.now_ms, merged.last_token) == (NOW, 7)


def test_the_shard_may_go_on_counting() -> None:
    counting = Tally(records=1)
    overlay = overlaid(Batch(NOW, 1, tallies={("a", "b"): counting}))
    counting.records = 99
    assert overlay.merged().tallies == {("a", "b"): Tally(records=1)}


def late(token: int) -> Incident:
    return Incident(name("k"), "operation", token, None, NOW, Outcome(200, (("a", "\ud800"),), b"\xff"))


def test_the_shard_may_go_on_counting_in_what_it_was_told_at_the_start() -> None:
    """On a full disk a shard opens with batches that its file lacks, and the file gets them later as they were."""
    overlay = Overlay()
    overlay.add(Batch(NOW, 1, tallies={("t", "n"): Tally(records=1, pending=1)}))
    opened = overlay.opened(Opened(0, NOW, {("t", "m"): Tally(records=1)}), 7)
    for tally in opened.tallies.values():
        tally.pending += 1
    assert overlay.merged().tallies == {("t", "n"): Tally(records=1, pending=1)}


def test_incidents_that_follow_an_acknowledgement_go_into_the_next_write() -> None:
    overlay = overlaid(Batch(NOW, 1, incidents=[late(1)]), Batch(NOW, 1, incidents=[late(2)], acknowledged=[1]))
    assert not overlay.fits(Batch(NOW, 1, incidents=[late(1)]))
    assert overlay.fits(Batch(NOW, 1, acknowledged=[2]))
    assert overlay.fits(Batch(NOW, 1, puts=[pending(1, name("k"))]))


def test_an_event_that_came_and_went_costs_the_file_nothing() -> None:
    overlay = overlaid(Batch(NOW, 1, events=[event(5), event(6)]), Batch(NOW, 1, acked=[5, 4]))
    assert len(overlay) == 2
    assert overlay.look_up_events([3, 4, 5, 6]) == ({6: event(6)}, [3, 5])
    merged = overlay.merged()
    assert (merged.events, merged.acked) == ([event(6)], [4])


def test_an_intent_goes_with_its_entry_and_with_its_delivery() -> None:
    one, two = dispatched(1, name("a")), dispatched(2, name("b"))
    bare = pending(2, name("b"), token=3)
    overlay = overlaid(
        Batch(NOW, 2, puts=[one, two], intents={1: INTENT, 2: INTENT}),
        Batch(NOW, 3, puts=[bare], deletes=[one], undelivered=[2]),
    )
    assert overlay.look_up_intents([1, 2, 3]) == ({}, [3])
    merged = overlay.merged()
    assert (merged.intents, merged.undelivered, merged.puts, merged.deletes) == ({}, [2], [bare], [one])


def test_what_is_dispatched_again_under_its_old_id_keeps_the_new_intent() -> None:
    again = dispatched(1, name("k"), token=3)
    overlay = overlaid(
        Batch(NOW, 2, puts=[pending(1, name("k"))], undelivered=[1]),
        Batch(NOW, 3, puts=[again], intents={1: INTENT}),
    )
    assert overlay.look_up_intents([1]) == ({1: INTENT}, [])
    merged = overlay.merged()
    assert (merged.puts, merged.undelivered, merged.intents) == ([again], [1], {1: INTENT})


def test_an_id_that_was_deleted_and_is_back_has_lost_its_delivery() -> None:
    old, new = dispatched(1, name("k")), pending(1, name("k"), token=2)
    merged = overlaid(Batch(NOW, 1, deletes=[old]), Batch(NOW, 2, puts=[new])).merged()
    assert (merged.puts, merged.deletes, merged.undelivered) == ([new], [], [1])


def test_an_operation_is_known_as_long_as_its_entry_says_so() -> None:
    first = dispatched(1, name("k"))
    buried = Entry(1, name("k"), None, Tombstone(1, None, operation(1), NOW + 9, ending=Ending.CANCELLED), NOW + 9)
    overlay = Overlay()
    asked = ("default", "trade", operation(1))
    assert overlay.find_operation(*asked) is None
    for entry in (first, buried):
        overlay.add(Batch(NOW, 1, puts=[entry]))
        assert overlay.find_operation(*asked) == name("k")
        assert overlay.find_operation("acme", "trade", operation(1)) is None
        assert overlay.find_operation("default", "pay", operation(1)) is None
    overlay.add(Batch(NOW, 2, puts=[dispatched(1, name("k"), token=2, operation_id=operation(2))]))
    assert overlay.find_operation(*asked) is None
    assert overlay.covers(name("k"))
    overlay.add(Batch(NOW, 2, deletes=[first]))
    assert overlay.find_operation("default", "trade", operation(2)) is None


# ------------------------------------------------------------------------------------------------ bytes of the journal


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_comes_back_from_its_bytes(seed: int) -> None:
    writer = Writer(Random(seed))
    for _ in range(5):
        batch = writer.batch()
        writer.disk.apply(batch)
        there = decode(encode(batch))
        assert (there.puts, there.incidents, there.acknowledged) == (batch.puts, batch.incidents, batch.acknowledged)
        assert (there.tallies, there.now_ms, there.last_token) == (batch.tallies, batch.now_ms, batch.last_token)
        assert (there.intents, there.undelivered) == (batch.intents, batch.undelivered)
        assert (there.events, there.acked, there.emptied) == (batch.events, batch.acked, batch.emptied)
        assert [(e.id, e.identity) for e in there.deletes] == [(e.id, e.identity) for e in batch.deletes]


def test_headers_keep_what_no_text_column_could() -> None:
    batch = Batch(NOW, 1, incidents=[late(1)])
    assert decode(encode(batch)).incidents == [late(1)]


def test_what_no_file_could_store_has_no_bytes() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        encode(Batch(NOW, 1, puts=[pending(1, name("k"), holder="\ud800")]))


def test_every_byte_that_is_cut_off_is_noticed() -> None:
    body = encode(copy.copy(Batch(NOW, 1, puts=[committed(1, name("k"))])))
    for size in range(len(body)):
        with pytest.raises(StorageError):
            decode(body[:size])


def test_bytes_of_before_anything_could_be_emptied_are_read() -> None:
    batch = Batch(NOW, 1, puts=[committed(1, name("k"))], events=[event(1)])
    content = msgpack.unpackb(encode(batch))
    assert content[0] == 3
    assert decode(msgpack.packb([2, *content[1:-1]])) == decode(encode(batch))


def test_bytes_of_another_release_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(journal_rows, "_VERSION", 4)
        body = encode(Batch(NOW, 1))
    with pytest.raises(StorageError, match="format 4; start the release"):
        decode(body)
