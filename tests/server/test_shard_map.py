"""The shard map, as both doors give it."""

from __future__ import annotations

import hashlib
import random

import jsonschema  # type: ignore[import-untyped]  # It ships no types.
from trio.testing import MockClock

from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.server.shard_map import ShardMap
from idemactor.wire.openapi import document
from tests.server.rig import TOKENS
from tests.server.test_http_app import bearer
from tests.server.test_http_app import serving as serving_http
from tests.server.test_rpc_door import serving as serving_rpc

TWO = ShardMap(5, 1, (("h0",), ("h1",)), (("r0", "unix:u0"), ("r1", "unix:u1")))


def test_every_shard_has_one_worker() -> None:
    body = TWO.body("acme")
    assert body == {
        "shards": 5,
        "hash": "blake2b-64",
        "tenant": "acme",
        "worker": 1,
        "workers": [
            {"worker": 0, "shards": [0, 2, 4], "http": ["h0"], "rpc": ["r0", "unix:u0"]},
            {"worker": 1, "shards": [1, 3], "http": ["h1"], "rpc": ["r1", "unix:u1"]},
        ],
    }
    jsonschema.Draft202012Validator(document()["components"]["schemas"]["ShardMap"]).validate(body)  # type: ignore[index]


def test_the_hash_is_what_the_contract_says() -> None:
    chance = random.Random(seed := random.randrange(2**32))
    for _ in range(200):
        identity = Identity(*("".join(chance.choices("ab:1é名", k=chance.randrange(1, 9))) for _ in range(3)))
        text = "".join(f"{len(part)}:{part}" for part in identity)
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
        shards = chance.randrange(1, 2000)
        assert number % shards == shard_of(identity_hash(identity), shards), f"seed {seed}: {identity}"


async def test_both_doors_give_it_to_who_may_call(autojump_clock: MockClock) -> None:
    async with serving_http(autojump_clock, tokens=TOKENS) as client:
        client.rig.context.shard_map = TWO
        told = await client.get("/v1/shards", headers=bearer("caller-token"))
        assert (told.status, told.json) == (200, TWO.body("acme"))
        (await client.get("/v1/shards")).problem(401, "UNAUTHENTICATED")
        (await client.get("/v1/shards", headers=bearer("metrics-token"))).problem(403, "FORBIDDEN")
    async with serving_rpc(autojump_clock, tokens=TOKENS) as server:
        server.rig.context.shard_map = TWO
        peer = server.connect()
        await peer.call("auth", token="other-token")
        assert await peer.call("shards") == TWO.body("other")
        await peer.call("auth", token="metrics-token")
        assert (await peer.fail("shards")).startswith("IDEMPOTENCY_FORBIDDEN: ")
