"""Batches merged and written once leave what they would have left one by one."""

from __future__ import annotations

import copy
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idemactor.core.record import Incident, Outcome
from idemactor.core.tally import Tally
from idemactor.errors import StorageError
from idemactor.storage import journal_rows
from idemactor.storage.base import Batch
from idemactor.storage.journal_rows import decode, encode
from idemactor.storage.memory import MemoryDisk
from idemactor.storage.overlay import Overlay
from tests.storage.samples import NOW, Writer, committed, name, pending


def kept(disk: MemoryDisk) -> tuple[object, ...]:
    return (disk.entries, disk.ids, disk.incidents, disk.tallies, disk.last_token, disk.latest_ms)


def write(overlay: Overlay, disk: MemoryDisk) -> Overlay:
    disk.apply(overlay.merged())
    return Overlay()


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


def test_incidents_that_follow_an_acknowledgement_go_into_the_next_write() -> None:
    overlay = overlaid(Batch(NOW, 1, incidents=[late(1)]), Batch(NOW, 1, incidents=[late(2)], acknowledged=[1]))
    assert not overlay.fits(Batch(NOW, 1, incidents=[late(1)]))
    assert overlay.fits(Batch(NOW, 1, acknowledged=[2]))
    assert overlay.fits(Batch(NOW, 1, puts=[pending(1, name("k"))]))


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


def test_bytes_of_another_release_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(journal_rows, "_VERSION", 2)
        body = encode(Batch(NOW, 1))
    with pytest.raises(StorageError, match="format 2; start the release"):
        decode(body)
