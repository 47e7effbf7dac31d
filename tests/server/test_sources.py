"""Requests with their source over both doors: real payloads, resends, near misses, two tenants, and secrets nowhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import MockClock

from idemactor.core.keys import Identity
from idemactor.core.policy import Policy
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.request import RawRequest
from idemactor.gateway.source import Bucket, Source, Verify
from idemactor.gateway.verify import Scheme
from idemactor.observability.observer import Observer
from tests.gateway.payloads import OWN, START_MS, Payload, payloads, request_members
from tests.server import test_rpc_door as rpc
from tests.server.rig import TOKENS, Rig
from tests.server.test_http_app import Client, bearer

CASES = payloads()
SOURCES = {**SHIPPED, **{source.name: source for source in OWN.values()}}
JSON = ("Content-Type", "application/json")
TTL_MS = Policy().ttl_ms
TOKEN = {"acme": "operator-token", "other": "other-token"}


class Doors:
    """Asks over HTTP and over RPC in turn, and keeps everything that was said."""

    def __init__(self, rig: Rig, server: rpc.Server) -> None:
        self._http = Client(rig)
        self._server = server
        self._turn = 0
        self.said: list[str] = []

    async def ask(self, op: str, tenant: str = "acme", **members: Any) -> dict[str, Any]:
        self._turn += 1
        request = members.get("request")
        if self._turn % 2:
            if request is not None:
                members["request"] = request_members(request, as_bytes=False)
            answer = await self._http.post(f"/v1/default/{op}", members, headers=bearer(TOKEN[tenant]))
            told: dict[str, Any] = answer.json
        else:
            if request is not None:
                members["request"] = request_members(request, as_bytes=True)
            peer = self._server.connect()
            await peer.call("auth", token=TOKEN[tenant])
            error, result = await peer.try_call(op, namespace="default", **members)
            told = result if error is None else {"code": error.partition(":")[0], "detail": error}
            await peer.stream.aclose()
        self.said.append(repr(told))
        return told

    async def looked_at(self) -> str:
        """Everything that can be seen of what is kept."""
        seen = [
            await self._http.get(f"/v1/default/{name}", headers=bearer(TOKEN["acme"]))
            for name in ("records", "incidents")
        ]
        metrics = await self._http.get("/metrics", headers=bearer(TOKEN["acme"]))
        return " ".join([*self.said, *(answer.body.decode() for answer in (*seen, metrics))])


WORDS = {"completed": "repeat", "in_flight": "repeat", "reserved": "new", "mismatch": "mismatch"}


async def told(doors: Doors, case: Payload, request: RawRequest) -> str:
    answer = await doors.ask("reserve", source=case.source.name, request=request, on_duplicate="replay")
    return WORDS[answer["result"]] if "result" in answer else {"IDEMPOTENCY_INVALID_REQUEST": "invalid"}[answer["code"]]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
async def test_real_payloads(case: Payload, autojump_clock: MockClock) -> None:
    async with rpc.serving(autojump_clock, tokens=TOKENS, sources=SOURCES) as server:
        doors = Doors(server.rig, server)
        source: dict[str, Any] = {"source": case.source.name, "request": case.first}
        dry = await doors.ask("key", **source)
        assert dry == await doors.ask("key", **source)
        granted = await doors.ask("reserve", **source)
        assert (granted["result"], granted["key"]) == ("reserved", dry["key"])
        record = (await doors.ask("get", key=dry["key"]))["record"]
        assert record["fingerprint"] == dry["fingerprint"]
        await doors.ask("commit", key=dry["key"], token=granted["token"])
        for what, expect, request, _ in case.variants("near_misses"):
            assert await told(doors, case, request) in (expect if isinstance(expect, list) else [expect]), what
        # The same from somebody else is another operation, over either door.
        for op in ("reserve", "accept"):
            theirs = await doors.ask(op, "other", source=case.source.name, request=case.first, request_id="r")
            assert theirs["result"] == {"reserve": "reserved", "accept": "in_flight"}[op]
        begun_ms = START_MS
        for what, expect, request, at_ms in sorted(case.variants("resends"), key=lambda variant: variant[3]):
            await trio.sleep((at_ms - begun_ms) / 1_000)
            begun_ms = at_ms
            assert await told(doors, case, request) == expect, what
        seen = await doors.looked_at()
        assert dry["key"] in seen
        signatures = [value for name, value in case.first.headers if re.search("signature|hmac", name, re.IGNORECASE)]
        assert not [secret for secret in (*case.secrets, *signatures) if secret in seen]


async def test_a_window_counts_from_the_first_sighting(autojump_clock: MockClock) -> None:
    """Both sides of a minute of the wall clock, and of the window's end."""
    case = next(case for case in CASES if case.id == "h09-hoox")
    async with rpc.serving(autojump_clock, tokens=TOKENS, sources=SOURCES) as server:
        doors = Doors(server.rig, server)

        async def accepted(name: str) -> str:
            answer = await doors.ask("accept", source=name, request=case.first)
            return str(answer["result"])

        now_ms = server.rig.context.now_ms()
        await trio.sleep((60_000 - now_ms % 60_000 + 59_000) / 1_000)
        names = ("hoox", "hoox-minute", "hoox-ttl")
        assert [await accepted(name) for name in names] == ["accepted"] * 3
        await trio.sleep(2)
        assert [await accepted(name) for name in names] == ["completed", "accepted", "completed"]
        await trio.sleep(57.999)
        assert [await accepted(name) for name in names] == ["completed", "completed", "completed"]
        await trio.sleep(0.001)
        assert [await accepted(name) for name in names] == ["accepted", "completed", "completed"]
        await trio.sleep(240.001)
        assert await accepted("hoox-ttl") == "accepted"


async def test_a_sender_that_has_not_proved_who_it_is(autojump_clock: MockClock) -> None:
    verify = Verify(Scheme.GITHUB, ("S",), ("made-up-github-secret",))
    sources = {"github": replace(SHIPPED["github"], verify=verify)}
    case = next(case for case in CASES if case.id == "h04-github-push")
    forged = replace(case.first, body=case.first.body + b" ")
    async with rpc.serving(autojump_clock, tokens=TOKENS, sources=sources) as server:
        doors = Doors(server.rig, server)
        for op in ("key", "reserve", "accept", "key", "key", "reserve", "accept"):
            answer = await doors.ask(op, source="github", request=forged)
            assert answer["code"] == "IDEMPOTENCY_BAD_SIGNATURE"
            assert "X-Hub-Signature-256" in answer["detail"]
        http, peer = Client(server.rig), server.connect()
        members = {"source": "github", "request": request_members(forged, as_bytes=False)}
        refused = await http.post("/v1/default/accept", members, headers=bearer("caller-token"))
        assert refused.problem(401, "BAD_SIGNATURE")["field"] == "header:X-Hub-Signature-256"
        assert "www-authenticate" not in refused.headers
        # In a batch it says what is at fault, too, and other mistakes do.
        forgery = {"op": "accept", "namespace": "default", **members}
        ops = [forgery, {**forgery, "source": "nobody"}]
        told = await http.post("/v1/batch", {"ops": ops}, headers=bearer("caller-token"))
        fields = [result["field"] for result in told.json["results"]]
        assert fields == ["header:X-Hub-Signature-256", "source"]
        await peer.call("auth", token="caller-token")
        ops = [{**forgery, "request": request_members(forged, as_bytes=True)}]
        [result] = (await peer.call("batch", ops=ops))["results"]
        assert (result["code"], result["field"]) == ("IDEMPOTENCY_BAD_SIGNATURE", "header:X-Hub-Signature-256")
        metrics = (await http.get("/metrics", headers=bearer("operator-token"))).body.decode()
        assert re.search(r"refused\w*\{[^}]*BAD_SIGNATURE[^}]*\} [1-9]", metrics)
        assert not re.search(r"UNAUTHENTICATED[^}]*\} [1-9]", metrics)
        assert (await doors.ask("get", key=dict(case.first.headers)["X-GitHub-Delivery"]))["result"] == "unknown"
        assert (await doors.ask("accept", source="github", request=case.first))["result"] == "accepted"


async def test_every_call_that_became_a_command_is_seen(autojump_clock: MockClock) -> None:
    """Over both doors, alone and in a batch; what did not become one is not, but a forgery is told by its source."""
    seen: list[tuple[str, str, set[str]]] = []
    forged: list[str] = []

    class Forged(Observer):
        def forged(self, source: str) -> None:
            forged.append(source)

    def watch(op: str, identity: Identity, members: Mapping[str, object]) -> None:
        seen.append((op, identity.key, set(members)))

    signed = replace(SHIPPED["github"], verify=Verify(Scheme.GITHUB, ("S",), ("made-up",)))
    options: dict[str, Any] = {"sources": {**SHIPPED, "github": signed}, "watch": watch, "observer": Forged()}
    event, forgery = (RawRequest("POST", "/", (JSON,), body) for body in (b'{"id":"e"}', b"{}"))
    async with rpc.serving(autojump_clock, tokens=TOKENS, **options) as server:
        doors = Doors(server.rig, server)
        for _ in range(2):
            await doors.ask("reserve", source="stripe", request=event, payload=None)
            await doors.ask("accept", key="k", payload={"a": 1})
            await doors.ask("get", key="k")
            await doors.ask("get", key="")
            await doors.ask("key", source="stripe", request=event)
            await doors.ask("accept", source="github", request=forgery)
            ops = [{"op": "get", "namespace": "default", "key": "b"}, {"op": "get"}]
            await Client(server.rig).post("/v1/batch", {"ops": ops}, headers=bearer("caller-token"))
            # The next round goes over the other door.
            await doors.ask("policy")
        headers = [("Idempotency-Key", "h"), *bearer("caller-token")]
        for name in ("http", "github"):
            await Client(server.rig).call("POST", f"/v1/default/authorize?source={name}&uri=/", {"a": 1}, headers)
    one = [("reserve", "e", {"source", "request"}), ("accept", "k", {"key", "payload"}), ("get", "k", {"key"})]
    assert seen == [*one, ("get", "b", {"key"})] * 2 + [("accept", "h", {"source", "request"})]
    assert forged == ["github"] * 3


async def test_nothing_is_forgotten_before_its_sender_is_done(autojump_clock: MockClock) -> None:
    """Whichever namespace it goes to: the settings of a namespace do not know the sender."""
    source = Source("slow", id=("/id",), derive=("/a",), bucket=Bucket.MINUTE, retry_horizon_ms=TTL_MS + 1)
    brief = replace(source, name="brief", retry_horizon_ms=TTL_MS - 1)
    own = replace(source, name="own", ttl_ms=TTL_MS + 2)
    async with rpc.serving(
        autojump_clock, tokens=TOKENS, sources={one.name: one for one in (source, brief, own)}
    ) as server:
        doors = Doors(server.rig, server)
        at_ms = server.rig.context.now_ms()
        for one, ttl_ms in ((source, TTL_MS + 1), (brief, TTL_MS), (own, TTL_MS + 2)):
            for body, name in ((b'{"id":"%b"}', "id"), (b'{"a":"%b"}', "a"), (b'{"idempotencyKey":"%b"}', "key")):
                request = RawRequest("POST", "/", (JSON,), body % f"{one.name}-{name}".encode())
                accepted = await doors.ask("accept", source=one.name, request=request)
                assert accepted["expires_at"] - at_ms == ttl_ms
                other = replace(request, body=request.body.replace(b"-", b"+"))
                granted = await doors.ask("reserve", source=one.name, request=other)
                committed = await doors.ask("commit", key=granted["key"], token=granted["token"])
                assert committed["expires_at"] - at_ms == ttl_ms
        # Who calls may know better.
        request = RawRequest("POST", "/", (JSON,), b'{"id":"mine"}')
        accepted = await doors.ask("accept", source="slow", request=request, ttl_ms=5)
        assert accepted["expires_at"] - at_ms == 5


async def test_two_senders_with_one_id_are_two_operations(autojump_clock: MockClock) -> None:
    """The second is refused, never told that its own was done."""
    stripe = RawRequest("POST", "/s", (JSON,), b'{"id":"973"}')
    github = RawRequest("POST", "/g", (JSON, ("X-GitHub-Delivery", "973")), b'{"other":1}')
    async with rpc.serving(autojump_clock, tokens=TOKENS) as server:
        doors = Doors(server.rig, server)
        assert (await doors.ask("accept", source="stripe", request=stripe))["result"] == "accepted"
        for op in ("accept", "accept", "reserve", "reserve"):
            assert (await doors.ask(op, source="github", request=github))["result"] == "mismatch"
            assert (await doors.ask("accept", source="stripe", request=stripe))["result"] == "completed"


async def test_a_dry_run_needs_rights_and_leaves_no_trace(autojump_clock: MockClock) -> None:
    async with rpc.serving(autojump_clock, tokens=TOKENS) as server:
        http, peer = Client(server.rig), server.connect()
        members: dict[str, Any] = {"source": "stripe", "request": {"method": "POST", "path": "/", "body": '{"id":"e"}'}}
        for token, status in (("caller-token", 200), ("trade-token", 403), ("metrics-token", 403), ("nobody", 401)):
            assert (await http.post("/v1/default/key", members, headers=bearer(token))).status == status
        assert "UNAUTHENTICATED" in await peer.fail("key", namespace="default", **members)
        await peer.call("auth", token="caller-token")
        assert (await peer.call("key", namespace="default", **members))["key"] == "e"
        assert "INVALID_REQUEST" in await peer.fail("key", namespace="default", key="k", **members)
        assert "INVALID_REQUEST" in await peer.fail("key", namespace="default", source="stripe")
        listed = await http.get("/v1/default/records", headers=bearer("operator-token"))
        assert listed.json["records"] == []


async def test_old_clients_pack_a_request_as_raw_text(autojump_clock: MockClock) -> None:
    """Names and values as ``bin`` or ``str``, bodies as ``str`` that is not UTF-8: it is one request."""
    async with rpc.serving(autojump_clock) as server:
        peer = server.connect()
        headers = [["X-GitHub-Delivery", "d"]]
        keys: list[str] = []
        for options in ({}, {"use_bin_type": False}):
            request = {"method": "POST", "path": "/", "headers": headers, "body": b"\xff\x00"}
            members = {"namespace": "default", "source": "github", "request": request}
            frame = msgpack.packb([0, 100 + len(keys), "key", [members]], **options)
            await peer.send(frame)
            [(error, result)] = await peer.answers([100 + len(keys)])
            assert error is None
            keys.append(json.dumps(result, sort_keys=True))
        assert keys[0] == keys[1]
