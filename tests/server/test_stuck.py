"""What is stuck, asked at both doors: what it says, in which order, of whom, and what becomes of shards that hang."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

from idemactor.core.policy import OnDoubt, OnLeaseExpiry, Policy
from idemactor.server.stuck import STUCK_MS_MAX
from idemactor.shard.actor import Shard
from idemactor.wire.openapi import document
from tests.server.rig import TOKENS
from tests.server.test_http_app import Client, bearer
from tests.server.test_http_app import serving as http_serving
from tests.server.test_rpc_door import serving as rpc_serving

POLICIES = {
    "default": Policy(lease_ms=3_600_000),
    "trade": Policy(lease_ms=5_000, on_lease_expiry=OnLeaseExpiry.HOLD, on_doubt=OnDoubt.HOLD),
    "again": Policy(lease_ms=5_000, on_lease_expiry=OnLeaseExpiry.RETRY),
}


async def post(client: Client, path: str, by: str = "caller-token", **members: Any) -> Any:
    told = await client.post(f"/v1/{path}", members, headers=bearer(by))
    assert told.status < 300, told.body
    return told.json


async def stuck(client: Client, query: str = "", by: str = "operator-token") -> Any:
    told = await client.get(f"/v1/stuck{query}", headers=bearer(by))
    assert told.status == 200, told.body
    return told.json


async def troubled(client: Client) -> None:
    """A bit of everything, a second apart; and what is nobody's business."""
    await post(client, "again/reserve", key="twice", holder="w0")
    await trio.sleep(6)
    await post(client, "again/reserve", key="twice", holder="w1")
    late = await client.post("/v1/again/commit", {"key": "twice", "token": 1}, headers=bearer("caller-token"))
    assert late.status == 409
    await trio.sleep(1)
    await post(client, "default/reserve", key="long", holder="w2")
    await trio.sleep(1)
    reserved = await post(client, "trade/reserve", key="doubted", holder="w3")
    await post(client, "trade/doubt", key="doubted", token=reserved["token"], reason="no answer")
    await trio.sleep(1)
    await post(client, "default/dispatch", key="queued", intent={"body": "x"})
    later = client.rig.context.now_ms() + 86_400_000
    await post(client, "default/dispatch", key="tomorrow", intent={"body": "x"}, not_before=later)
    done = await post(client, "default/reserve", key="done")
    await post(client, "default/commit", key="done", token=done["token"], events=[{"body": "news"}])
    await post(client, "default/reserve", by="other-token", key="theirs")


async def test_it_says_what_for_how_long_and_who(autojump_clock: MockClock) -> None:
    async with http_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as client:
        await troubled(client)
        fresh = await stuck(client)
        assert {each["key"] for each in fresh["stuck"]} == {"twice", "doubted"}
        await trio.sleep(61)
        found = await stuck(client)
        assert [(each["why"], each["namespace"], each["key"], each["holder"]) for each in found["stuck"]] == [
            ("in_doubt", "again", "twice", "w1"),
            ("incident", "again", "twice", None),
            ("pending", "default", "long", "w2"),
            ("in_doubt", "trade", "doubted", "w3"),
            ("undelivered", "default", "queued", None),
        ]
        now = client.rig.context.now_ms()
        assert all(each["for_ms"] == now - each["since"] for each in found["stuck"])
        _, incident, pending, doubted, queued = found["stuck"]
        assert (pending["attempt"], pending["contested"], doubted["reason"]) == (1, False, "no answer")
        assert (incident["token"], incident["incident"] is None) == (1, False)
        assert queued["attempt"] == 0
        [unfetched] = found["unfetched"]
        assert (unfetched["namespace"], unfetched["entries"]) == ("default", 1)
        assert (found["more"], found["silent_shards"]) == (False, [])


async def test_it_is_bounded_and_says_so(autojump_clock: MockClock) -> None:
    async with http_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as client:
        await troubled(client)
        found = await stuck(client, "?older_than_ms=0&limit=2")
        assert [each["key"] for each in found["stuck"]] == ["twice", "twice"]
        assert found["more"]
        refused = await client.get("/v1/stuck?limit=0", headers=bearer("operator-token"))
        assert (refused.status, refused.json["field"]) == (400, "limit")
        refused = await client.get("/v1/stuck?state=pending", headers=bearer("operator-token"))
        assert (refused.status, refused.json["field"]) == (400, "state")


async def test_a_tenant_sees_its_own_and_an_operator_alone_sees_it(autojump_clock: MockClock) -> None:
    async with http_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as client:
        await troubled(client)
        await trio.sleep(61)
        found = await stuck(client, by="other-token")
        assert [each["key"] for each in found["stuck"]] == ["theirs"]
        assert found["unfetched"] == []
        for token, status in (("caller-token", 403), ("metrics-token", 403), ("guessed", 401)):
            assert (await client.get("/v1/stuck", headers=bearer(token))).status == status


async def test_the_ages_of_metrics_are_a_tenants_own(autojump_clock: MockClock) -> None:
    async with http_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as client:
        await troubled(client)
        await trio.sleep(10)
        mine = (await client.get("/metrics", headers=bearer("operator-token"))).body.decode()
        theirs = (await client.get("/metrics", headers=bearer("other-token"))).body.decode()
        for name in ("idemactor_oldest_in_doubt_age_seconds{", "idemactor_oldest_undelivered_age_seconds{"):
            assert f"{name}" in mine
            assert f"{name}" not in theirs
        waits = 'idemactor_oldest_undelivered_age_seconds{kind="intent",namespace="default",tenant="acme"} '
        assert float(mine.partition(waits)[2].split()[0]) >= 10
        assert 'idemactor_outbox_entries{kind="intent",namespace="default",tenant="acme"} 2.0' in mine
        assert 'idemactor_outbox_entries{kind="event",namespace="default",tenant="acme"} 1.0' in mine


async def test_shards_that_hang_are_named_and_the_others_told(autojump_clock: MockClock) -> None:
    async with http_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as client:
        for number in range(30):
            await post(client, "default/reserve", key=f"k{number}")
        await trio.sleep(61)
        all_of_them = len((await stuck(client))["stuck"])
        shard = client.rig.context.router.shards[1]
        assert isinstance(shard, Shard)

        async def hang(*_: object) -> None:
            await trio.sleep_forever()

        shard._engine.confirm = hang  # type: ignore[method-assign, assignment]
        started = trio.current_time()
        found = await stuck(client)
        assert found["silent_shards"] == [1]
        assert all_of_them == 30
        assert 0 < len(found["stuck"]) < 30
        assert trio.current_time() - started <= STUCK_MS_MAX / 1_000 + 0.1


async def test_the_other_door_says_the_same(autojump_clock: MockClock) -> None:
    async with rpc_serving(autojump_clock, policies=POLICIES) as server:
        peer = server.connect()
        await peer.call("reserve", namespace="default", key="long", holder="w2")
        await trio.sleep(61)
        found = await peer.call("stuck", older_than_ms=1_000)
        assert [(each["why"], each["key"], each["holder"]) for each in found["stuck"]] == [("pending", "long", "w2")]
        schema: Any = document()
        assert found.keys() == schema["components"]["schemas"]["StuckList"]["properties"].keys()
        assert found["stuck"][0].keys() == schema["components"]["schemas"]["Stuck"]["properties"].keys()
