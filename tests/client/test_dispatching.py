"""Dispatch, operations and the outbox from the client: without a server, and over both kinds of program."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from idemactor.client import (
    Acked,
    AlreadyCommittedError,
    Cancelled,
    Client,
    Committed,
    Completed,
    Dispatched,
    EntryRef,
    InFlightError,
    InvalidRequest,
    MismatchError,
    NotFound,
    OperationState,
    OutboxEntry,
    Outcome,
    Policy,
    Postponed,
    Reserved,
    StaleTokenError,
    TooLarge,
    UncancellableError,
    UnknownKeyError,
    event,
)
from idemactor.client.sync import Client as SyncClient
from idemactor.core.policy import DispatchPolicy

NO_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


async def dispatched(client: Client, key: str, body: object = "do it", **options: object) -> Dispatched:
    found = await client.dispatch("trade", key, body, **options)  # type: ignore[arg-type]
    assert isinstance(found, Dispatched)
    return found


async def test_from_dispatch_to_its_outcome() -> None:
    async with Client.in_memory() as client:
        first = await dispatched(client, "k", {"qty": 1}, headers={"X-A": "b"}, order_key="acct")
        assert (first.state, first.repeated) == (OperationState.QUEUED, False)
        assert await dispatched(client, "k", b'{"qty":1.0}', content_type="application/json") == Dispatched(
            first.operation_id, OperationState.QUEUED, repeated=True
        )
        with pytest.raises(MismatchError):
            await client.dispatch("trade", "k", {"qty": 2})
        with pytest.raises(InFlightError) as busy:
            await client.reserve("trade", "k")
        assert busy.value.lease_expires_at is None
        found = await client.operation("trade", first.operation_id)
        assert (found.key, found.state, found.attempt, found.order_key) == ("k", OperationState.QUEUED, 0, "acct")
        assert not found.ended
        [entry] = await client.poll("trade", max_entries=5, visibility_ms=5_000)
        assert isinstance(entry, OutboxEntry)
        assert (entry.id, entry.kind, entry.attempt, entry.takeover) == (first.operation_id, "intent", 1, False)
        assert (entry.body, entry.content_type, entry.headers) == (b'{"qty":1}', "application/json", (("X-A", "b"),))
        with pytest.raises(UncancellableError) as late:
            await client.cancel("trade", first.operation_id)
        assert late.value.state == "delivering"
        outcome = Outcome(201, (), b"\xff")
        acked = await client.ack("trade", entry, outcome=outcome)
        assert isinstance(acked, Committed)
        ended = await client.operation("trade", first.operation_id, wait_ms=60_000)
        assert (ended.state, ended.outcome, ended.ended) == (OperationState.SUCCEEDED, outcome, True)
        replayed = await client.reserve("trade", "k")
        assert isinstance(replayed, Completed)
        assert replayed.outcome == outcome
        record = await client.get("trade", "k")
        assert record.dispatch is not None
        assert record.dispatch["state"] == "succeeded"
        with pytest.raises(AlreadyCommittedError):
            await client.nack("trade", entry)


async def test_giving_back_and_failing() -> None:
    async with Client.in_memory() as client:
        operation = await dispatched(client, "k")
        [entry] = await client.poll("trade")
        back = await client.nack("trade", entry, delay_ms=5_000, reason="not now")
        assert isinstance(back, Postponed)
        assert await client.poll("trade") == ()
        client.clock.advance(5_000)
        [again] = await client.poll("trade")
        assert (again.attempt, again.id) == (2, entry.id)
        with pytest.raises(StaleTokenError):
            await client.ack("trade", entry)
        failed = await client.nack("trade", again, failed=True, outcome=Outcome(422))
        assert isinstance(failed, Committed)
        assert (await client.operation("trade", operation.operation_id)).state is OperationState.FAILED


async def test_cancelling_and_what_is_not_there() -> None:
    async with Client.in_memory() as client:
        operation = await dispatched(client, "k")
        assert await client.cancel("trade", operation.operation_id) == Cancelled(repeated=False)
        assert await client.cancel("trade", operation.operation_id) == Cancelled(repeated=True)
        assert (await client.operation("trade", operation.operation_id)).state is OperationState.CANCELLED
        for call in (client.operation, client.cancel):
            with pytest.raises(NotFound):
                await call("trade", NO_ID)
        with pytest.raises(UnknownKeyError):
            await client.ack("trade", EntryRef(NO_ID, "none", 1))


async def test_events() -> None:
    async with Client.in_memory() as client:
        granted = await client.reserve("trade", "k")
        assert isinstance(granted, Reserved)
        events = [event({"filled": 1}, order_key="acct"), event(b"\x00", headers=[("X-A", "b")])]
        await client.commit("trade", "k", granted.token, events=events)
        fetched = await client.poll("trade")
        assert sorted((e.id, e.kind, e.body, e.order_key) for e in fetched) == [
            (f"{granted.operation_id}.1", "event", b'{"filled":1}', "acct"),
            (f"{granted.operation_id}.2", "event", b"\x00", None),
        ]
        for entry in fetched:
            assert await client.ack("trade", entry) == Acked(repeated=False)
            assert await client.ack("trade", entry) == Acked(repeated=True)


async def test_a_poll_waits_for_what_comes() -> None:
    async with Client.in_memory() as client, trio.open_nursery() as nursery:
        got: list[OutboxEntry] = []

        async def fetch() -> None:
            got.extend(await client.poll("trade", wait_ms=60_000))

        nursery.start_soon(fetch)
        await trio.testing.wait_all_tasks_blocked()
        assert got == []
        await dispatched(client, "k")
        with trio.fail_after(5):
            while not got:
                await trio.testing.wait_all_tasks_blocked()
        assert [entry.key for entry in got] == ["k"]


async def test_waiting_for_an_end() -> None:
    async with Client.in_memory() as client, trio.open_nursery() as nursery:
        operation = await dispatched(client, "k")
        [entry] = await client.poll("trade")
        states: list[OperationState] = []

        async def wait() -> None:
            states.append((await client.operation("trade", operation.operation_id, wait_ms=60_000)).state)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert states == []
        await client.ack("trade", entry)
        await trio.testing.wait_all_tasks_blocked()
        assert states == [OperationState.SUCCEEDED]


async def test_what_cannot_be_sent_is_refused_here() -> None:
    small = {"trade": Policy(dispatch=DispatchPolicy(intent_max_bytes=10))}
    async with Client.in_memory(namespaces=small) as client:
        with pytest.raises(InvalidRequest) as found:
            await client.dispatch("trade", "k", "a", headers={"Host": "elsewhere"})
        assert found.value.field == "intent.headers.0"
        with pytest.raises(InvalidRequest):
            await client.dispatch("trade", "k", "\ud800")
        with pytest.raises(TypeError):
            await client.dispatch("trade", "k", object())
        with pytest.raises(TooLarge):
            await client.dispatch("trade", "k", "x" * 11)
        with pytest.raises(InvalidRequest):
            event("a", order_key="")


def test_the_same_for_threads() -> None:
    with SyncClient.in_memory() as client:
        found = client.dispatch("trade", "k", "do it")
        [entry] = client.poll("trade", wait_ms=1_000)
        client.ack("trade", entry, outcome=Outcome(200))
        assert client.operation("trade", found.operation_id).state is OperationState.SUCCEEDED
        other = client.dispatch("trade", "k2", "do it")
        [again] = client.poll("trade")
        client.nack("trade", again)
        client.clock.advance(1_000)
        with pytest.raises(NotFound):
            client.cancel("trade", NO_ID)
        assert client.cancel("trade", other.operation_id) == Cancelled(repeated=False)
