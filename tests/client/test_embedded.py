"""The client without a server: shards in the same program, in memory and on disk."""

# ruff: noqa: PT012 - What is raised comes out of the context manager, whatever its body does.

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing

from idemactor.client import (
    AlreadyCommittedError,
    Client,
    Completed,
    DuplicateError,
    Forgotten,
    InDoubtError,
    InFlightError,
    InvalidRequest,
    LeaseLost,
    MismatchError,
    Outcome,
    Policy,
    QuotaExceeded,
    Released,
    ReleasedError,
    Reserved,
    Resolved,
    StaleTokenError,
    UnknownKeyError,
    UnknownNamespace,
    UnsettledError,
)
from idemactor.core.commands import Verdict
from idemactor.core.policy import OnDuplicate
from tests.client.test_cancellation import STEPS_MAX, cancelling_at


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def reserved(client: Client, key: str, **options: object) -> Reserved:
    found = await client.reserve("trade", key, **options)  # type: ignore[arg-type]
    assert isinstance(found, Reserved)
    return found


async def test_every_command() -> None:
    async with Client.in_memory() as client:
        first = await reserved(client, "k", payload={"a": 1}, holder="h", lease_ms=1_000)
        assert first.lease_expires_at - first.reserved_at == 1_000
        with pytest.raises(InFlightError) as busy:
            await client.reserve("trade", "k")
        assert busy.value.holder == "h"
        with pytest.raises(MismatchError):
            await client.reserve("trade", "k", payload={"a": 2})
        extended = await client.extend("trade", "k", first.token, 5_000)
        assert extended.lease_expires_at - first.reserved_at == 5_000
        with pytest.raises(StaleTokenError) as stale:
            await client.commit("trade", "k", first.token + 1)
        assert stale.value.attempt == 1
        outcome = Outcome(201, (("a", "b"),), b"\xff\x00")
        committed = await client.commit("trade", "k", first.token, outcome=outcome)
        assert not committed.repeated
        assert (await client.commit("trade", "k", first.token)).repeated
        done = await client.reserve("trade", "k")
        assert isinstance(done, Completed)
        assert done.outcome == outcome
        with pytest.raises(AlreadyCommittedError):
            await client.release("trade", "k", first.token)
        with pytest.raises(DuplicateError):
            await client.accept("trade", "k", on_duplicate="reject")
        record = await client.get("trade", "k")
        assert (record.state, record.token, record.outcome, record.holder) == ("committed", first.token, outcome, "h")
        assert await client.forget("trade", "k") == Forgotten()
        with pytest.raises(UnknownKeyError):
            await client.get("trade", "k")
        await client.ping()


async def test_releasing_doubting_and_resolving() -> None:
    async with Client.in_memory() as client:
        first = await reserved(client, "k", request_id="r")
        assert await client.release("trade", "k", first.token, reason="x") == Released(False)
        assert await client.release("trade", "k", first.token) == Released(True)
        with pytest.raises(ReleasedError):
            await client.reserve("trade", "k", request_id="r")
        second = await reserved(client, "k")
        with pytest.raises(UnsettledError):
            await client.forget("trade", "k")
        await client.doubt("trade", "k", second.token, reason="timeout")
        with pytest.raises(InDoubtError) as caught:
            await client.reserve("trade", "k")
        assert caught.value.reason == "timeout"
        assert caught.value.operation_id == second.operation_id
        resolved = await client.resolve("trade", "k", second.token, "committed", outcome=Outcome(200))
        assert resolved == Resolved(Verdict.COMMITTED, False)


async def test_listings_go_through_pages_and_incidents_are_acknowledged() -> None:
    async with Client.in_memory() as client:
        for number in range(7):
            await client.accept("trade", f"k{number}")
        late = await reserved(client, "late", lease_ms=10)
        client.clock.advance(20)
        await reserved(client, "late")
        with pytest.raises(StaleTokenError):
            await client.commit("trade", "late", late.token, outcome=Outcome(200))
        assert [r.key async for r in client.records("trade", page_size=3)] == [*(f"k{n}" for n in range(7)), "late"]
        assert [r.key async for r in client.records("trade", contested=True)] == ["late"]
        assert [r.key async for r in client.records("trade", state="pending")] == ["late"]
        [incident] = [found async for found in client.incidents("trade", page_size=1)]
        assert (incident.key, incident.token, incident.outcome) == ("late", late.token, Outcome(200))
        await client.acknowledge("trade", incident.id)
        assert [found async for found in client.incidents("trade")] == []


async def test_a_batch_answers_each_in_its_place() -> None:
    async with Client.in_memory() as client:
        await client.accept("trade", "done")
        found = await client.batch(
            [
                {"op": "reserve", "namespace": "trade", "key": "a"},
                {"op": "reserve", "namespace": "trade", "key": "a"},
                {"op": "accept", "namespace": "trade", "key": "b", "outcome": Outcome(200, body=b"x")},
                {"op": "get", "namespace": "trade", "key": "none"},
                {"op": "forget", "namespace": "trade", "key": "a"},
                {"op": "reserve", "namespace": "trade", "key": "done"},
                {"op": "get", "namespace": "NO", "key": "a"},
            ]
        )
        kinds = [type(result) for result in found]
        assert kinds[:2] == [Reserved, InFlightError]
        assert kinds[3:] == [UnknownKeyError, InvalidRequest, Completed, InvalidRequest]
        assert (await client.get("trade", "b")).outcome == Outcome(200, body=b"x")


async def test_policies_and_namespaces() -> None:
    strict = Policy(on_duplicate=OnDuplicate.REJECT, records_max=1, lease_ms=50)
    async with Client.in_memory(namespaces={"strict": strict}) as client:
        found = await client.policy("strict")
        assert (found.on_duplicate, found.records_max, found.lease_ms) == (OnDuplicate.REJECT, 1, 50)
        assert found.limits["batch_ops_max"] == 1_000
        with pytest.raises(UnknownNamespace):
            await client.reserve("trade", "k")
        await client.accept("strict", "k")
        with pytest.raises(DuplicateError):
            await client.accept("strict", "k")
        with pytest.raises(QuotaExceeded):
            await client.accept("strict", "another")
        with pytest.raises(InvalidRequest) as caught:
            await client.reserve("strict", "k", lease_ms=0)
        assert caught.value.field == "lease_ms"


async def test_time_stands_still_until_it_is_moved() -> None:
    async with Client.in_memory() as client:
        with pytest.raises(LeaseLost):
            async with client.hold("trade", "k", lease_ms=300_000) as hold:
                client.clock.advance(100_000)
                await settled()
                client.clock.advance(299_000)
                await settled()
                hold.check()
                client.clock.advance(300_000)
                await trio.sleep_forever()
        with pytest.raises(UnknownKeyError):
            await client.get("trade", "k")
        await client.accept("trade", "k", ttl_ms=1_000)
        client.clock.advance(999)
        assert isinstance(await client.accept("trade", "k"), Completed)
        client.clock.advance(1)
        assert not isinstance(await client.accept("trade", "k"), Completed)


async def test_waiting_goes_by_the_clock_that_is_moved() -> None:
    async with Client.in_memory() as client, trio.open_nursery() as nursery:
        refused = trio.Event()

        async def wait() -> None:
            with pytest.raises(InFlightError):
                async with client.hold("trade", "k", wait=5_000):
                    pytest.fail("two holders")
            refused.set()

        async with client.hold("trade", "k"):
            nursery.start_soon(wait)
            for _ in range(5):
                await settled()
                assert not refused.is_set()
                client.clock.advance(1_000)
            with trio.fail_after(5):
                await refused.wait()
        with pytest.raises(ValueError, match="goes back"):
            client.clock.advance(-1)


async def test_cancelled_at_every_wait_in_memory() -> None:
    async with Client.in_memory() as client:
        states = set()
        for number in range(1, STEPS_MAX):
            key, begun, ended = f"k{number}", False, False

            async def holding() -> None:
                nonlocal begun, ended
                async with client.hold("trade", key, lease_ms=60_000) as hold:  # noqa: B023
                    await trio.lowlevel.checkpoint()
                    hold.begin_effect()
                    begun = True
                    await trio.lowlevel.checkpoint()
                    ended = True

            waits = 0
            with anyio.CancelScope() as scope:
                waits = await cancelling_at(number, holding(), scope.cancel)
            await settled()
            try:
                left = (await client.get("trade", key)).state
            except UnknownKeyError:
                left = "absent"
            assert left == ("committed" if ended else "in_doubt" if begun else "absent"), number
            states.add(left)
            if waits and waits < number:
                break
        assert states == {"absent", "in_doubt", "committed"}


async def test_a_waiter_that_is_cancelled_in_memory_is_never_granted() -> None:
    async with Client.in_memory() as client:
        first = await reserved(client, "k")
        with trio.move_on_after(0) as scope:
            await client.reserve("trade", "k", wait_ms=1_000)
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def wait() -> None:
                with scope:
                    await client.reserve("trade", "k", wait_ms=1_000)

            nursery.start_soon(wait)
            await settled()
            scope.cancel()
        await client.release("trade", "k", first.token)
        await settled()
        with pytest.raises(UnknownKeyError):
            await client.get("trade", "k")


async def test_what_is_on_disk_is_there_the_next_time(tmp_path: object) -> None:
    path = f"{tmp_path}/data"
    async with Client.embedded(path, shards=2) as client:
        async with client.hold("trade", "k") as hold:
            hold.set_outcome(body=b"x")
        with pytest.raises(RuntimeError, match="moved"):
            _ = client.clock
    async with Client.embedded(path) as client:
        found = await client.reserve("trade", "k")
        assert isinstance(found, Completed)
        assert found.outcome == Outcome(200, body=b"x")


async def test_a_directory_has_one_owner_and_a_mistake_comes_out_as_it_is(tmp_path: object) -> None:
    from idemactor.errors import StartError

    path = f"{tmp_path}/data"
    async with Client.embedded(path) as client:
        await client.accept("trade", "k")
        with pytest.raises(StartError):
            async with Client.embedded(path):
                pytest.fail("two owners")
    with pytest.raises(StartError, match="trade"):
        async with Client.embedded(path, namespaces={"payments": Policy()}):
            pytest.fail("records without settings")


def test_shards_want_trio() -> None:
    async def main() -> None:
        async with Client.in_memory():
            pytest.fail("asyncio has no shards")

    with pytest.raises(RuntimeError, match="trio"):
        anyio.run(main, backend="asyncio")
