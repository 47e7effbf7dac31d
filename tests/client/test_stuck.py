"""What is stuck, as the client tells it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from idemactor.client import Client, InvalidRequest, Outcome, Policy, ProtocolViolation, StaleTokenError, Why, sync
from idemactor.client.stuck import Stuck, StuckList, Unfetched, stuck_of
from idemactor.core.policy import OnLeaseExpiry
from idemactor.wire.openapi import document

POLICIES = {"trade": Policy(lease_ms=5_000), "again": Policy(lease_ms=5_000, on_lease_expiry=OnLeaseExpiry.RETRY)}
WHOLE: dict[str, Any] = {
    "stuck": [
        {
            "why": "undelivered",
            "namespace": "trade",
            "key": "k",
            "operation_id": "0190f8f0-0000-7000-8000-000000000000",
            "attempt": 5,
            "token": 9,
            "holder": "relay",
            "since": 1_000,
            "for_ms": 70_000,
            "lease_expires_at": None,
            "waiting": 0,
            "contested": False,
            "reason": "it answered 503",
            "destination": "http://upstream.test",
            "due_at": 80_000,
            "incident": None,
            "present_token": None,
        }
    ],
    "unfetched": [{"namespace": "again", "entries": 3, "since": 7}],
    "more": True,
    "silent_shards": [1],
}


def test_every_member_has_its_place() -> None:
    told = stuck_of(WHOLE)
    assert (told.unfetched, told.more, told.silent_shards) == ((Unfetched("again", 3, 7),), True, (1,))
    [one] = told.stuck
    assert (one.why, one.destination, one.due_at) == (Why.UNDELIVERED, "http://upstream.test", 80_000)
    schemas: Any = json.loads(json.dumps(document()))["components"]["schemas"]
    for kind, name in ((Stuck, "Stuck"), (StuckList, "StuckList")):
        assert {field.name for field in fields(kind)} == set(schemas[name]["properties"])


@pytest.mark.parametrize("name", [*WHOLE, *(f"stuck.{name}" for name in WHOLE["stuck"][0])])
def test_an_answer_that_lacks_something_is_none(name: str) -> None:
    broken = json.loads(json.dumps(WHOLE))
    where, _, inner = name.partition(".")
    if inner:
        del broken["stuck"][0][inner]
    else:
        del broken[where]
    with pytest.raises(ProtocolViolation):
        stuck_of(broken)


def test_a_reason_that_nobody_knows_is_none() -> None:
    with pytest.raises(ProtocolViolation):
        stuck_of({**WHOLE, "stuck": [{**WHOLE["stuck"][0], "why": "bored"}]})


@pytest.mark.parametrize("namespaces", [POLICIES, None])
async def test_without_a_server_it_says_what_for_how_long_and_who(namespaces: dict[str, Policy] | None) -> None:
    async with Client.in_memory(namespaces=namespaces) as client:
        assert await client.stuck() == StuckList((), (), more=False, silent_shards=())
        held: Any = await client.reserve("trade", "doubted", holder="w1")
        await client.doubt("trade", "doubted", held.token, reason="no answer")
        client.clock.advance(1_000)
        await client.reserve("again", "long", holder="w2", lease_ms=600_000)
        [doubted] = (await client.stuck()).stuck
        assert (doubted.why, doubted.key, doubted.holder, doubted.reason) == (
            Why.IN_DOUBT,
            "doubted",
            "w1",
            "no answer",
        )
        client.clock.advance(61_000)
        first, second = (await client.stuck()).stuck
        assert (first.key, first.for_ms) == ("doubted", 62_000)
        assert (second.why, second.namespace, second.key, second.holder) == (Why.PENDING, "again", "long", "w2")
        told = await client.stuck(older_than_ms=120_000, limit=1)
        assert [one.key for one in told.stuck] == ["doubted"]
        assert [one.key for one in (await client.stuck(limit=1)).stuck] == ["doubted"]
        assert (await client.stuck(limit=1)).more
        with pytest.raises(InvalidRequest):
            await client.stuck(limit=0)


async def test_an_incident_can_be_acknowledged() -> None:
    async with Client.in_memory(namespaces=POLICIES) as client:
        late: Any = await client.reserve("again", "k")
        client.clock.advance(6_000)
        await client.reserve("again", "k")
        with pytest.raises(StaleTokenError):
            await client.commit("again", "k", late.token, outcome=Outcome(200))
        [incident] = [one for one in (await client.stuck()).stuck if one.why is Why.INCIDENT]
        assert (incident.token, incident.holder is None, incident.attempt) == (late.token, True, None)
        assert incident.incident is not None
        await client.acknowledge("again", incident.incident)
        assert not any(one.why is Why.INCIDENT for one in (await client.stuck()).stuck)


async def test_what_an_earlier_program_left_is_told(tmp_path: Path) -> None:
    async with Client.embedded(tmp_path / "data") as client:
        held: Any = await client.reserve("trade", "k")
        await client.doubt("trade", "k", held.token)
    async with Client.embedded(tmp_path / "data") as client:
        assert [one.key for one in (await client.stuck()).stuck] == ["k"]


def test_threads_have_it_too() -> None:
    with sync.Client.in_memory() as client:
        assert client.stuck().stuck == ()
