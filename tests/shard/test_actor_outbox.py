"""What a shard does for those who take from its outbox: claims, events, order over several shards, and the bell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
import trio

from idemactor.core.clock import Sequencer
from idemactor.core.commands import AckEvent, Cancel, Commit, Dispatch, Doubt, NackEvent, Postpone, Reserve, Watch
from idemactor.core.delivery import Intent, Kind, NewEvent, OperationState
from idemactor.core.limits import POLL_BYTES_MAX
from idemactor.core.outbox import ASIDE_MS
from idemactor.core.policy import DispatchPolicy, Policy
from idemactor.core.queries import (
    Behind,
    FindOperation,
    Heads,
    Inspect,
    Inspected,
    Moved,
    Noted,
    OperationAt,
    Take,
    Taken,
    TakenIntent,
    Turn,
)
from idemactor.core.replies import (
    Acked,
    Cancelled,
    Committed,
    Dispatched,
    Doubted,
    Nacked,
    Postponed,
    Reserved,
    Stale,
    Unavailable,
    Watched,
)
from idemactor.shard import taking
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.backoff import BACKOFF_MS_MIN
from idemactor.shard.bell import Bell
from idemactor.shard.taking import NOTHING
from idemactor.storage.base import CommitResult, Open
from idemactor.storage.memory import Fault, MemoryDisk, MemoryEngine
from tests.shard.harness import NAMESPACE, OK, START_MS, TENANT, Rig, identity, key_in, on_mock_time, running, slow

LEASE_MS: Final = 500
POLICY: Final = Policy(dispatch=DispatchPolicy(pushed=True, recognised=True))
BLIND: Final = Policy(dispatch=DispatchPolicy(pushed=True, recognised=False))
INTENT: Final = Intent("text/plain", b"buy", (("x-desk", "7"),))
TAKE: Final = Take(NAMESPACE, None, (Kind.INTENT, Kind.EVENT), 100, LEASE_MS, "relay")
FAULTS = [
    Fault(CommitResult.FAILED),
    Fault(CommitResult.UNKNOWN),
    Fault(CommitResult.UNKNOWN, applied=True),
]
FAULT_NAMES = ["failed", "unknown", "unknown but kept"]


def dispatch(key: str, order_key: str | None = None, **given: Any) -> Dispatch:
    """A dispatch of the tests' tenant."""
    return Dispatch(identity(key), INTENT, order_key=order_key, **given)


@dataclass
class Ears:
    """Hears a bell, and counts."""

    bell: Bell = field(default_factory=Bell)
    rung: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bell.on_ring = self.rung.append


@asynccontextmanager
async def dispatching(
    *disks: MemoryDisk,
    policy: Policy = POLICY,
    ears: Ears | None = None,
    engine: type[MemoryEngine] = MemoryEngine,
    **given: Any,
) -> AsyncIterator[Rig]:
    """Shards that share a bell and places in line, as those of a process do."""
    bell = ears.bell if ears else Bell()
    shared: list[Sequencer] = []

    def make(*arguments: Any, **named: Any) -> Shard:
        if not shared:
            shared.append(Sequencer(arguments[4].now_us))
        build: Callable[..., Shard] = Shard
        # The rig has opened it.
        arguments[1].__class__ = engine
        return build(*arguments, bell=bell, sequencer=shared[0], **named)

    async with running(*disks, policy=policy, make=make, **given) as rig:
        bell.on_moved = rig.router.lines_moved
        yield rig


async def ask(rig: Rig, shard: int, query: Any) -> Any:
    """Ask a shard, and wait for what it says."""
    return await rig.query(query, shard).wait()


async def take(rig: Rig, shard: int = 0, **given: Any) -> Taken:
    """Take what keeps no order, or what ``turns`` names."""
    taken = await ask(rig, shard, replace(TAKE, **given))
    assert isinstance(taken, Taken), taken
    return taken


async def scan(rig: Rig) -> list[TakenIntent]:
    """The taker: from every shard what is due, and of the heads of lines those that nothing stands before anywhere."""
    found: list[TakenIntent] = []
    shards = range(len(rig.shards))
    for shard in shards:
        taken = await take(rig, shard)
        found += taken.intents
        if not taken.heads:
            continue
        behind: set[Turn] = set()
        for other in shards:
            if other != shard:
                answer = await ask(rig, other, Heads(NAMESPACE, taken.heads))
                behind |= set(answer.turns if isinstance(answer, Behind) else taken.heads)
        turns = tuple(turn for turn in taken.heads if turn not in behind)
        found += (await take(rig, shard, turns=turns, behind=tuple(behind))).intents
    return found


def keys(taken: list[TakenIntent] | tuple[TakenIntent, ...]) -> list[str]:
    """Theirs."""
    return [one.identity.key for one in taken]


async def state(rig: Rig, key: str, operation_id: str) -> OperationState:
    """How an operation stands."""
    return (await rig.one(Watch(identity(key), operation_id), Watched)).state


# ------------------------------------------------------------------------------------------------------------- claims


@on_mock_time
async def test_what_is_taken_is_the_intent_with_all_that_its_delivery_needs() -> None:
    async with dispatching() as rig:
        accepted = await rig.one(dispatch("k", expires_in_ms=9_000), Dispatched)
        await trio.sleep(1)
        taken = await take(rig)
        (one,) = taken.intents
        record = rig.disk.entries[1].record
        assert record is not None
        assert (one.identity, one.operation_id) == (identity("k"), accepted.operation_id)
        assert (one.intent, one.attempt, one.token) == (INTENT, 1, record.token)
        assert (one.accepted_at, one.deliver_until) == (START_MS, START_MS + 9_000)
        assert one.lease_expires_at == record.lease_expires_at == START_MS + 1_000 + LEASE_MS
        assert (one.perhaps_sent, one.order_key) == (False, None)
        assert (taken.heads, taken.next_at, taken.more) == ((), one.lease_expires_at, False)
        assert (await take(rig)).intents == ()


@on_mock_time
async def test_a_claim_is_durable_before_it_is_told() -> None:
    async with dispatching() as rig:
        await rig.one(dispatch("k"), Dispatched)
        rig.disk.before_commit = slow(3)
        call = rig.query(TAKE)
        await trio.sleep(2.9)
        assert not call.answered
        record = rig.disk.entries[1].record
        assert record is not None
        assert record.lease_expires_at is None
        assert isinstance(await call.wait(), Taken)
        record = rig.disk.entries[1].record
        assert record is not None
        assert record.attempt == 1


@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_NAMES)
@on_mock_time
async def test_nothing_of_a_failed_batch_is_told_and_what_is_there_is_recalled(fault: Fault) -> None:
    async with dispatching(policy=BLIND) as rig:
        await rig.one(dispatch("k"), Dispatched)
        rig.disk.faults.append(fault)
        calls = [*rig.send(dispatch("new")), rig.query(TAKE)]
        for call in calls:
            assert isinstance(await call.wait(), Unavailable)
        taken = await take(rig)
        # What was claimed without anybody being told is in doubt once its lease is over: it may have been sent.
        assert keys(taken.intents) == ([] if fault.applied else ["k"])
        await rig.one(dispatch("new"), Dispatched)
        assert keys((await take(rig)).intents) == ([] if fault.applied else ["new"])
        assert len({one.token for one in taken.intents}) == len(taken.intents)


@on_mock_time
async def test_what_is_dispatched_in_the_turn_that_takes_it_is_delivered_with_its_intent() -> None:
    async with dispatching() as rig:
        (call,) = rig.send(dispatch("k"))
        taken = await take(rig)
        assert isinstance(call.answer, Dispatched)
        assert [(one.intent, one.attempt) for one in taken.intents] == [(INTENT, 1)]
        assert rig.disk.commits == 1
        assert rig.disk.intents == {1: INTENT}


@on_mock_time
async def test_two_that_take_in_one_turn_get_each_entry_once() -> None:
    async with dispatching() as rig:
        await rig.all(*(dispatch(f"k{number}") for number in range(40)))
        calls = [rig.query(replace(TAKE, max=25)) for _ in range(3)]
        taken = [keys((await call.wait()).intents) for call in calls]  # type: ignore[union-attr]
        assert [len(each) for each in taken] == [25, 15, 0]
        assert sorted(key for each in taken for key in each) == sorted(f"k{number}" for number in range(40))


@on_mock_time
async def test_a_take_stops_once_it_is_large_and_what_is_left_is_due_at_once() -> None:
    async with dispatching() as rig:
        large = Intent("text/plain", bytes(POLL_BYTES_MAX // 16))
        for number in range(40):
            await rig.one(Dispatch(identity(f"k{number}"), large), Dispatched)
        takes = [await take(rig) for _ in range(3)]
        assert [len(taken.intents) for taken in takes] == [16, 16, 8]
        assert [taken.more for taken in takes] == [True, True, False]


@on_mock_time
async def test_whoever_comes_back_late_and_whoever_took_it_meanwhile_cannot_both_settle_it() -> None:
    async with dispatching() as rig:
        accepted = await rig.one(dispatch("k"), Dispatched)
        (first,) = (await take(rig)).intents
        await trio.sleep(LEASE_MS / 1_000)
        (second,) = (await take(rig)).intents
        assert (second.attempt, second.perhaps_sent, second.operation_id) == (2, True, first.operation_id)
        await rig.one(Commit(identity("k"), first.token, OK), Stale)
        await rig.one(Commit(identity("k"), second.token, OK), Committed)
        assert await state(rig, "k", accepted.operation_id) is OperationState.SUCCEEDED
        assert len(rig.disk.incidents) == 1


@on_mock_time
async def test_what_is_put_off_is_taken_when_it_is_due_and_what_is_in_doubt_never() -> None:
    async with dispatching(policy=BLIND) as rig:
        await rig.all(dispatch("late"), dispatch("lost"))
        for one in (await take(rig)).intents:
            if one.identity.key == "late":
                due = START_MS + 700
                await rig.one(Postpone(one.identity, one.token, due, perhaps_sent=False, reason="503"), Postponed)
            else:
                await rig.one(Doubt(one.identity, one.token, "timeout"), Doubted)
        assert (await take(rig)).next_at == START_MS + 700
        await trio.sleep(0.7)
        assert keys((await take(rig)).intents) == ["late"]
        await trio.sleep(3_600)
        assert (await take(rig)).intents == ()


# ---------------------------------------------------------------------------------------- opening, sleeping, failing


@on_mock_time
async def test_a_restart_recalls_what_waits() -> None:
    disk = MemoryDisk()
    async with dispatching(disk) as rig:
        await rig.all(dispatch("a", "line"), dispatch("b", "line"), dispatch("c", not_before=START_MS + 5_000))
    async with dispatching(disk) as rig:
        taken = await take(rig)
        assert (taken.intents, len(taken.heads)) == ((), 1)
        (first,) = await scan(rig)
        assert (first.identity.key, first.intent, first.attempt) == ("a", INTENT, 1)
        await rig.one(Commit(first.identity, first.token, OK), Committed)
        (second,) = await scan(rig)
        assert second.identity.key == "b"
        await rig.one(Commit(second.identity, second.token, OK), Committed)
        assert (await take(rig)).next_at == START_MS + 5_000
        await trio.sleep(5)
        assert keys(await scan(rig)) == ["c"]


@on_mock_time
async def test_places_in_line_go_on_after_a_restart_with_a_clock_that_was_set_back() -> None:
    disks = [MemoryDisk(), MemoryDisk()]
    async with dispatching(*disks) as rig:
        await rig.all(*(dispatch(key_in(0, 2, f"k{number}"), "line") for number in range(1_500)))
    async with dispatching(*disks, start_ms=START_MS - 10_000) as rig:
        # The other shard has not been asked for anything, and knows nothing of the places that the first one gave.
        await rig.one(dispatch(key_in(1, 2), "line"), Dispatched)
    seqs = [e.record.delivery.seq for d in disks for e in d.entries.values() if e.record and e.record.delivery]
    assert len(set(seqs)) == 1_501
    (late,) = (e.record.delivery.seq for e in disks[1].entries.values() if e.record and e.record.delivery)
    assert late == max(seqs)


@on_mock_time
async def test_nobody_sleeps_while_something_waits() -> None:
    settings = ShardSettings(evict_after_ms=100)
    async with dispatching(settings=settings) as rig:
        await rig.one(dispatch("k", not_before=START_MS + 60_000), Dispatched)
        await trio.sleep(50)
        assert rig.watch.happened == []
        (call,) = await rig.all(dispatch("k"))
        await rig.one(Cancel(identity("k"), call.got(Dispatched).operation_id), Cancelled)
        await trio.sleep(1)
        assert rig.watch.happened == ["evicted 0"]


@on_mock_time
async def test_who_sleeps_answers_bystanders_and_goes_on_sleeping() -> None:
    async with dispatching(settings=ShardSettings(evict_after_ms=100)) as rig:
        await trio.sleep(1)
        turn = Turn(TENANT, Kind.INTENT, "line", 7)
        assert await ask(rig, 0, TAKE) == NOTHING
        assert await ask(rig, 0, Heads(NAMESPACE, (turn,))) == Behind(())
        assert await ask(rig, 0, Moved(NAMESPACE, (turn,))) == Noted()
        assert isinstance(await ask(rig, 0, Inspect()), Inspected)
        assert rig.watch.happened == ["evicted 0"]
        assert await ask(rig, 0, FindOperation(TENANT, NAMESPACE, "none")) == OperationAt(None)
        assert rig.watch.happened == ["evicted 0", "opened 0"]


@on_mock_time
async def test_bystanders_keep_nobody_awake() -> None:
    async with dispatching(settings=ShardSettings(evict_after_ms=1_000)) as rig:
        for _ in range(30):
            await trio.sleep(0.1)
            await take(rig)
        assert rig.watch.happened == ["evicted 0"]


@on_mock_time
async def test_who_slept_recalls_what_it_has_in_doubt() -> None:
    """In doubt and in no line, nothing waits for it; believed absent, it is delivered."""
    async with dispatching(policy=BLIND, settings=ShardSettings(evict_after_ms=100)) as rig:
        await rig.one(dispatch("k"), Dispatched)
        (one,) = (await take(rig)).intents
        await rig.one(Doubt(one.identity, one.token), Doubted)
        await trio.sleep(1)
        assert rig.watch.happened == ["evicted 0"]
        await rig.one(Postpone(one.identity, one.token, 0, perhaps_sent=False), Postponed)
        (again,) = (await take(rig)).intents
        assert (again.attempt, again.perhaps_sent) == (2, False)


class _Forgetful(MemoryEngine):
    """Cannot say what is in its outbox, so often."""

    failures = 0

    async def outbox(self, after_seq: int, limit: int) -> list[Open]:
        if type(self).failures > 0:
            type(self).failures -= 1
            raise OSError("the disk was told to fail")
        return await super().outbox(after_seq, limit)


@on_mock_time
async def test_an_outbox_that_cannot_be_recalled_is_tried_again_later_and_later() -> None:
    disk = MemoryDisk()
    async with dispatching(disk) as rig:
        await rig.one(dispatch("k"), Dispatched)
    _Forgetful.failures = 3
    async with dispatching(disk, engine=_Forgetful) as rig:
        assert isinstance(await ask(rig, 0, TAKE), Unavailable)
        assert rig.shard.quarantined
        assert isinstance(await ask(rig, 0, TAKE), Unavailable)
        await trio.sleep(60)
        assert [wait for _, wait, _ in rig.watch.quarantines] == [BACKOFF_MS_MIN * 2**n for n in range(3)]
        assert keys((await take(rig)).intents) == ["k"]
        assert not rig.shard.quarantined


@on_mock_time
async def test_what_was_answered_while_the_outbox_is_read_is_not_answered_again_where_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is read in pieces, with turns in between that answer callers."""
    disk = MemoryDisk()
    async with dispatching(disk) as rig:
        await rig.all(*(dispatch(f"k{number}") for number in range(5)))
    monkeypatch.setattr(taking, "RECALLED_AT_A_TIME", 2)
    async with dispatching(disk, engine=_Forgetful) as rig:
        (call,) = rig.send(dispatch("new"))
        await call.wait()
        _Forgetful.failures = 1
        await trio.sleep(1)
        assert len(rig.watch.quarantines) == 1
        assert isinstance(call.answer, Dispatched)


class _Slow(MemoryEngine):
    """Takes its time to read the outbox."""

    async def outbox(self, after_seq: int, limit: int) -> list[Open]:
        await trio.sleep(1)
        return await super().outbox(after_seq, limit)


@on_mock_time
async def test_nobody_sleeps_before_all_is_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pieces that are read may hold nothing that anybody waits for."""
    disk = MemoryDisk()
    async with dispatching(disk, policy=BLIND) as rig:
        await rig.all(dispatch("lost"), dispatch("lost too"))
        await take(rig)
        await trio.sleep(LEASE_MS / 1_000)
        await rig.one(dispatch("next"), Dispatched)
    monkeypatch.setattr(taking, "RECALLED_AT_A_TIME", 1)
    async with dispatching(disk, policy=BLIND, settings=ShardSettings(evict_after_ms=500), engine=_Slow) as rig:
        await trio.sleep(10)
        assert rig.watch.happened == []
        assert keys((await take(rig)).intents) == ["next"]


@on_mock_time
async def test_while_the_outbox_is_read_an_event_is_acknowledged_by_its_tenant_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    async with dispatching(disk) as rig:
        await announced(rig, *(NewEvent("text/plain", bytes([number])) for number in range(9)))
    monkeypatch.setattr(taking, "RECALLED_AT_A_TIME", 1)
    async with dispatching(disk) as rig:
        last = max(disk.events)
        foreign = identity("k")._replace(tenant="zeta")
        name = disk.events[last].id
        mine = identity("k")
        calls = rig.send(AckEvent(foreign, last, name), AckEvent(mine, last, name), AckEvent(mine, last + 1, name))
        told = [await call.wait() for call in calls]
        assert not rig.shard._ledger or not rig.shard._ledger.outbox.recalled
        assert told == [Acked(repeated=True), Acked(repeated=False), Acked(repeated=True)]
        assert len(disk.events) == 8
        await trio.sleep(1)
        assert len((await take(rig)).events) == 8


@on_mock_time
async def test_an_operation_is_found_by_its_id() -> None:
    async with dispatching() as rig:
        accepted = await rig.one(dispatch("k"), Dispatched)
        query = FindOperation(TENANT, NAMESPACE, accepted.operation_id)
        assert await ask(rig, 0, query) == OperationAt(identity("k"))
        assert await ask(rig, 0, replace(query, tenant="zeta")) == OperationAt(None)
        await rig.one(Cancel(identity("k"), accepted.operation_id), Cancelled)
        assert await ask(rig, 0, query) == OperationAt(identity("k"))


@on_mock_time
async def test_the_metrics_see_the_outbox() -> None:
    async with dispatching() as rig:
        await rig.all(dispatch("a"), dispatch("b"))
        await take(rig, max=1)
        inspected = await ask(rig, 0, Inspect())
        (count,) = inspected.outbox
        assert (count.tenant, count.namespace, count.kind, count.entries) == (TENANT, NAMESPACE, Kind.INTENT, 2)
        assert count.oldest_at == START_MS


# ------------------------------------------------------------------------------------------------------------- events


async def announced(rig: Rig, *events: NewEvent, key: str = "k") -> None:
    """A commit with events."""
    reserved = await rig.one(Reserve(identity(key)), Reserved)
    await rig.one(Commit(identity(key), reserved.token, OK, events=events), Committed)


@on_mock_time
async def test_a_take_stops_once_it_is_large_with_headers_as_well() -> None:
    async with dispatching() as rig:
        large = (("x", "y" * (POLL_BYTES_MAX // 16)),)
        for number in range(3):
            await announced(rig, *(NewEvent("", b"", large) for _ in range(14)), key=f"k{number}")
        takes = [await take(rig) for _ in range(3)]
        assert [len(taken.events) for taken in takes] == [16, 16, 10]


@on_mock_time
async def test_events_are_polled_hidden_shown_again_and_acknowledged() -> None:
    async with dispatching() as rig:
        await announced(rig, NewEvent("text/plain", b"one"), NewEvent("text/plain", b"two"))
        first, second = (await take(rig)).events
        assert [first.event.content.body, second.event.content.body] == [b"one", b"two"]
        assert [first.event.id[-2:], second.event.id[-2:]] == [".1", ".2"]
        assert (first.attempt, first.lease_expires_at) == (1, START_MS + LEASE_MS)
        assert (await take(rig)).events == ()
        assert await rig.one(AckEvent(identity("k"), first.event.seq, first.event.id), Acked) == Acked(repeated=False)
        assert list(rig.disk.events) == [second.event.seq]
        await trio.sleep(LEASE_MS / 1_000)
        (again,) = (await take(rig)).events
        assert (again.event, again.attempt) == (second.event, 2)
        await rig.one(NackEvent(identity("k"), again.event.seq, again.event.id, START_MS + 800), Nacked)
        assert (await take(rig)).next_at == START_MS + 800
        await trio.sleep(0.3)
        assert [one.attempt for one in (await take(rig)).events] == [3]
        await rig.one(AckEvent(identity("k"), again.event.seq, again.event.id), Acked)
        assert rig.disk.events == {}


@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_NAMES)
@on_mock_time
async def test_events_come_with_their_commit_or_not_at_all_and_an_ack_counts_once_it_is_kept(fault: Fault) -> None:
    async with dispatching() as rig:
        reserved = await rig.one(Reserve(identity("k")), Reserved)
        commit = Commit(identity("k"), reserved.token, OK, events=(NewEvent("text/plain", b"one"),))
        rig.disk.faults.append(fault)
        await rig.one(commit, Unavailable)
        assert len((await take(rig)).events) == int(fault.applied)
        again = await rig.one(commit, Committed)
        assert again.repeated is fault.applied
        await trio.sleep(LEASE_MS / 1_000)
        (event,) = (await take(rig)).events
        rig.disk.faults.append(fault)
        await rig.one(AckEvent(identity("k"), event.event.seq, event.event.id), Unavailable)
        # What was shown is forgotten with the memory: it is shown again, unless the acknowledgement was kept.
        assert len((await take(rig)).events) == int(not fault.applied)
        await rig.one(AckEvent(identity("k"), event.event.seq, event.event.id), Acked)
        assert rig.disk.events == {}


@on_mock_time
async def test_an_event_is_shown_in_the_turn_that_announces_it() -> None:
    async with dispatching() as rig:
        reserved = await rig.one(Reserve(identity("k")), Reserved)
        rig.send(Commit(identity("k"), reserved.token, OK, events=(NewEvent("text/plain", b"one"),)))
        (event,) = (await take(rig)).events
        assert event.event.content.body == b"one"


# --------------------------------------------------------------------------------------------- order over the shards


@on_mock_time
async def test_a_line_through_three_shards_is_taken_one_by_one_in_order_of_acceptance() -> None:
    async with dispatching(MemoryDisk(), MemoryDisk(), MemoryDisk()) as rig:
        order = [key_in(shard, 3, f"n{number}") for number, shard in enumerate((2, 0, 0, 1, 2, 1, 0))]
        for key in order:
            await rig.one(dispatch(key, "account"), Dispatched)
        seen: list[str] = []
        while len(seen) < len(order):
            found = await scan(rig)
            assert len(found) <= 1
            assert await scan(rig) == []
            for one in found:
                seen.append(one.identity.key)
                await rig.one(Commit(one.identity, one.token, OK), Committed)
                await trio.sleep(0.001)
        assert seen == order
        assert trio.current_time() < ASIDE_MS / 1_000, "a line waited although its head had moved"


@on_mock_time
async def test_other_lines_and_what_has_no_order_wait_for_nothing() -> None:
    async with dispatching(MemoryDisk(), MemoryDisk(), policy=BLIND) as rig:
        for shard, order_key in ((0, "a"), (1, "a"), (1, "b"), (0, None)):
            await rig.one(dispatch(key_in(shard, 2, f"{order_key}"), order_key), Dispatched)
        found = {one.identity.key: one for one in await scan(rig)}
        assert {one.order_key for one in found.values()} == {"a", "b", None}
        first = found[key_in(0, 2, "a")]
        await rig.one(Doubt(first.identity, first.token), Doubted)
        await trio.sleep(10 * ASIDE_MS / 1_000)
        assert await scan(rig) == [], "it overtook one that is in doubt"
        await rig.one(Commit(first.identity, first.token, OK), Committed)
        await trio.sleep(0.001)
        assert keys(await scan(rig)) == [key_in(1, 2, "a")]


@on_mock_time
async def test_a_shard_that_cannot_answer_lets_nothing_past() -> None:
    async with dispatching(MemoryDisk(), MemoryDisk()) as rig:
        first, second = key_in(0, 2), key_in(1, 2)
        await rig.one(dispatch(first, "a"), Dispatched)
        await rig.one(dispatch(second, "a"), Dispatched)
        rig.disk.failing_opens = 2
        rig.disk.faults.append(Fault(CommitResult.FAILED))
        await rig.one(Reserve(identity(key_in(0, 2, "other"))), Unavailable)
        taken = await take(rig, 1)
        assert isinstance(await ask(rig, 0, Heads(NAMESPACE, taken.heads)), Unavailable)
        await trio.sleep(60)
        assert (await ask(rig, 0, Heads(NAMESPACE, taken.heads))) == Behind(taken.heads)
        assert keys(await scan(rig)) == [first]


@on_mock_time
async def test_what_is_being_written_stands_before_what_was_accepted_later() -> None:
    """The first shard's disk is slow: what it has not written yet counts all the same."""
    disks = [MemoryDisk(), MemoryDisk()]
    async with dispatching(*disks) as rig:
        disks[0].before_commit = slow(1)
        (slowly,) = rig.send(dispatch(key_in(0, 2), "a"))
        await trio.sleep(0.1)
        await rig.one(dispatch(key_in(1, 2), "a"), Dispatched)
        assert not slowly.answered
        taken = await take(rig, 1)
        assert await ask(rig, 0, Heads(NAMESPACE, taken.heads)) == Behind(taken.heads)


# ----------------------------------------------------------------------------------------------------------- the bell


async def settle(rig: Rig, ears: Ears, action: Callable[[], Any]) -> list[str]:
    """What rings, once it is durable; not before."""
    ears.rung.clear()
    rig.disk.before_commit = slow(1)
    action()
    await trio.sleep(0.9)
    assert ears.rung == [], "it rang before the write"
    await trio.sleep(0.2)
    rig.disk.before_commit = None
    return list(ears.rung)


@on_mock_time
async def test_the_bell_rings_once_it_is_durable_and_not_for_a_claim() -> None:
    ears = Ears()
    async with dispatching(ears=ears) as rig:
        assert await settle(rig, ears, lambda: rig.send(dispatch("k", "line"))) == [NAMESPACE]
        (head,) = (await take(rig)).heads
        assert await settle(rig, ears, lambda: rig.query(replace(TAKE, turns=(head,), lease_ms=60_000))) == []
        record = rig.disk.entries[1].record
        assert record is not None
        put_off = Postpone(identity("k"), record.token, START_MS + 90_000, perhaps_sent=False)
        assert await settle(rig, ears, lambda: rig.send(put_off)) == [NAMESPACE]
        done = Commit(identity("k"), record.token, OK, events=(NewEvent("text/plain", b""),))
        assert await settle(rig, ears, lambda: rig.send(done)) == [NAMESPACE]
        assert await settle(rig, ears, lambda: rig.send(Reserve(identity("other")))) == []


@on_mock_time
async def test_nothing_rings_for_what_was_not_written() -> None:
    ears = Ears()
    async with dispatching(ears=ears) as rig:
        await take(rig)
        rig.disk.faults.append(Fault(CommitResult.FAILED))
        await rig.one(dispatch("k"), Unavailable)
        await take(rig)
        assert ears.rung == []


@on_mock_time
async def test_what_is_recalled_rings() -> None:
    disk = MemoryDisk()
    async with dispatching(disk) as rig:
        await rig.one(dispatch("k"), Dispatched)
    ears = Ears()
    async with dispatching(disk, ears=ears) as rig:
        await rig.one(Reserve(identity("other")), Reserved)
        assert ears.rung == [NAMESPACE]


@on_mock_time
async def test_who_waits_for_the_bell_is_woken_in_time() -> None:
    bell = Bell()
    seen = bell.count(NAMESPACE)
    bell.hear("other")
    with trio.move_on_after(1) as too_long:
        await bell.wait(NAMESPACE, 60, since=seen)
    assert too_long.cancelled_caught
    bell.hear(NAMESPACE)
    await bell.wait(NAMESPACE, 60, since=seen)
    assert trio.current_time() == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bell.wait, NAMESPACE, 60)
        await trio.sleep(2)
        bell.ring(NAMESPACE)
    assert trio.current_time() == 3
    await bell.wait(NAMESPACE, 5)
    assert trio.current_time() == 8
