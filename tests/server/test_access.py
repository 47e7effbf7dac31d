"""Who may do what, at every door, route and method there is: whatever is added is missing here until it is listed.

Nobody without rights learns anything: not whether a key, a namespace or an incident exists, and nothing of another
tenant, whose keys may have the same names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from idemactor.core.policy import OnLeaseExpiry, Policy
from idemactor.server import rpc_calls
from idemactor.server.auth import OPERATOR_CALLS
from idemactor.wire.requests import COMMAND_OPS
from tests.server.rig import TOKENS
from tests.server.test_http_app import Answer, Client, bearer
from tests.server.test_http_app import serving as http_serving
from tests.server.test_rpc_door import Peer
from tests.server.test_rpc_door import serving as rpc_serving

MARK: Final = "acme-mark"
"""In all that tenant acme stores."""
POLICIES: Final = {"default": Policy(on_lease_expiry=OnLeaseExpiry.RETRY), "trade": Policy()}
RAW: Final = {"method": "POST", "path": "/", "headers": [["Idempotency-Key", "held"]], "body": "x"}
NO_OPERATION: Final = "0190f8f0-0000-7000-8000-000000000000"
UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


@dataclass(frozen=True)
class Call:
    """How something is asked over HTTP; ``role`` is the least that may: caller, operator, metrics, or None: anybody."""

    method: str
    path: str
    role: str | None = "caller"
    members: dict[str, Any] | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)


COMMANDS: Final[dict[str, dict[str, Any]]] = {
    "reserve": {"key": "held"},
    "accept": {"key": "held", "outcome": {"status": 200, "body": "mine"}},
    "commit": {"key": "held", "token": 9_999, "outcome": {"status": 200}},
    "release": {"key": "held", "token": 9_999},
    "extend": {"key": "held", "token": 9_999, "lease_ms": 1_000},
    "doubt": {"key": "held", "token": 9_999},
    "resolve": {"key": "held", "token": 9_999, "verdict": "released"},
    "get": {"key": "done"},
    "forget": {"key": "done", "force": True},
    "dispatch": {"key": "held", "intent": {"body": "mine"}},
}
OUTBOX: Final[dict[str, dict[str, Any]]] = {
    "poll": {},
    "ack": {"id": NO_OPERATION, "key": "queued", "token": 9_999},
    "nack": {"id": NO_OPERATION, "key": "queued", "token": 9_999},
}
GATEWAY: Final = [("idempotency-key", "held"), ("x-idemactor-result", "in_flight"), ("x-request-id", "r1")]


def role_of(op: str) -> str:
    return "operator" if op in OPERATOR_CALLS else "caller"


CALLS: Final = [
    *(Call("POST", f"/v1/{{}}/{op}", role_of(op), members) for op, members in COMMANDS.items()),
    Call("POST", "/v1/{}/key", members={"source": "http", "request": RAW}),
    *(Call("POST", f"/v1/{{}}/outbox/{op}", members=members) for op, members in OUTBOX.items()),
    Call("GET", f"/v1/{{}}/operations/{NO_OPERATION}"),
    Call("DELETE", f"/v1/{{}}/operations/{NO_OPERATION}"),
    Call("GET", "/v1/{}/policy"),
    Call("GET", "/v1/{}/records", "operator"),
    Call("GET", "/v1/{}/incidents", "operator"),
    Call("POST", "/v1/{}/incidents/0-1/acknowledge", "operator"),
    Call("ANY", "/v1/{}/authorize", headers=GATEWAY),
    Call("ANY", "/v1/{}/verdict", headers=GATEWAY),
    Call("POST", "/v1/batch", members={"ops": [{"op": "get", "namespace": "default", "key": "done"}]}),
    Call("GET", "/v1/shards"),
    Call("GET", "/v1/stuck", "operator"),
    Call("GET", "/livez", None),
    Call("GET", "/readyz", None),
    Call("GET", "/openapi.json", None),
    Call("GET", "/metrics", "metrics"),
]
RPC: Final[dict[str, tuple[str | None, dict[str, Any]]]] = {
    **{op: (role_of(op), {"namespace": "{}", **members}) for op, members in COMMANDS.items()},
    "key": ("caller", {"namespace": "{}", "source": "http", "request": RAW}),
    **{f"outbox.{op}": ("caller", {"namespace": "{}", **members}) for op, members in OUTBOX.items()},
    "operation": ("caller", {"namespace": "{}", "operation_id": NO_OPERATION}),
    "cancel": ("caller", {"namespace": "{}", "operation_id": NO_OPERATION}),
    "policy": ("caller", {"namespace": "{}"}),
    "records": ("operator", {"namespace": "{}"}),
    "incidents": ("operator", {"namespace": "{}"}),
    "acknowledge": ("operator", {"namespace": "{}", "id": "0-1"}),
    "batch": ("caller", {"ops": [{"op": "get", "namespace": "default", "key": "done"}]}),
    "shards": ("caller", {}),
    "stuck": ("operator", {}),
    "ping": (None, {}),
    "auth": (None, {"token": "nobody"}),
}


async def ask(client: Client, call: Call, namespace: str, token: str | None) -> Answer:
    """Asked as somebody: the status, the fields and the body of the answer."""
    headers = [*call.headers, *(bearer(token) if token else [])]
    method = "POST" if call.method == "ANY" else call.method
    return await client.call(method, call.path.replace("{}", namespace), call.members, headers=headers)


async def ask_rpc(peer: Peer, method: str, namespace: str) -> tuple[Any, Any]:
    members = {name: namespace if value == "{}" else value for name, value in RPC[method][1].items()}
    return tuple(await peer.try_call(method, **members))


def said(answer: Answer) -> tuple[int, bytes, dict[str, str]]:
    """All of an answer but where it was asked."""
    return answer.status, re.sub(rb"/v1/[a-z]+", b"/v1/*", answer.body), answer.headers


def scoped(calls: list[Call]) -> list[Call]:
    return [call for call in calls if "{}" in call.path]


def _pattern(path: str) -> str:
    return path.replace("{}", "*").replace("0-1", "*").replace(NO_OPERATION, "*")


async def test_every_route_is_listed(autojump_clock: MockClock) -> None:
    async with http_serving(autojump_clock) as client:
        served = {
            (method, re.sub("<[a-z_]+>", "*", rule.rule))
            for rule in client.app.url_map.iter_rules()
            for method in (rule.methods or {"ANY"}) - {"HEAD", "OPTIONS"}
        }
    assert {(call.method, _pattern(call.path)) for call in CALLS} == served


def test_every_method_is_listed() -> None:
    assert RPC.keys() == COMMAND_OPS | rpc_calls._METHODS.keys()
    assert COMMANDS.keys() == COMMAND_OPS


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.path)
async def test_who_may_not_learns_nothing(call: Call, autojump_clock: MockClock) -> None:
    async with http_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as client:
        await acme_works(client)
        before = await all_of_acme(client)
        nobody = [await ask(client, call, "default", token) for token in (None, "nobody", "caller-tokens")]
        if call.role is None:
            assert all(answer.status == 200 and MARK not in answer.body.decode() for answer in nobody)
            return
        assert {answer.status for answer in nobody} == {401}
        # A wrong token and none, a namespace that is there and one that is not: all the same to a stranger.
        nobody += [await ask(client, call, "nowhere", None)]
        assert len({said(answer)[1] for answer in nobody}) == 1
        assert call.role == "metrics" or (await ask(client, call, "default", "metrics-token")).status == 403
        if call.role != "caller":
            assert (await ask(client, call, "default", "caller-token")).status == 403
        if "{}" in call.path:
            # Theirs is trade alone: whether there is another, and what is in it, they are not told.
            foreign = [await ask(client, call, namespace, "trade-token") for namespace in ("default", "nowhere")]
            assert said(foreign[0]) == said(foreign[1])
            assert foreign[0].status == 403
        assert await all_of_acme(client) == before


@pytest.mark.parametrize("method", sorted(RPC))
async def test_who_may_not_learns_nothing_over_rpc(method: str, autojump_clock: MockClock) -> None:
    role, members = RPC[method]
    async with rpc_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as server:
        client = Client(server.rig)
        await acme_works(client)
        before = await all_of_acme(client)
        stranger = await ask_rpc(server.connect(), method, "default")
        if role is None:
            assert MARK not in str(stranger)
            return
        assert str(stranger[0]).startswith("IDEMPOTENCY_UNAUTHENTICATED: ")
        assert await ask_rpc(server.connect(), method, "nowhere") == stranger
        below = ["metrics-token", *(["caller-token"] if role == "operator" else [])]
        for token in below:
            peer = server.connect()
            await peer.call("auth", token=token)
            assert str((await ask_rpc(peer, method, "default"))[0]).startswith("IDEMPOTENCY_FORBIDDEN: ")
        if "namespace" in members:
            peer = server.connect()
            await peer.call("auth", token="trade-token")
            foreign = [await ask_rpc(peer, method, namespace) for namespace in ("default", "nowhere")]
            assert foreign[0] == foreign[1]
            assert str(foreign[0][0]).startswith("IDEMPOTENCY_FORBIDDEN: ")
        assert await all_of_acme(client) == before


# ----------------------------------------------------------------------------------------------------- other tenants


async def acme_works(client: Client) -> None:
    """Tenant acme has a key that is held, one that is done, one in doubt, an incident, an intent and an event."""
    as_acme = {"headers": bearer("operator-token")}
    secret = {"status": 200, "headers": [["x", MARK]], "body": MARK}
    held = await client.post("/v1/default/reserve", {"key": "held", "holder": MARK}, **as_acme)
    assert held.json["token"] >= 1
    await client.post("/v1/default/accept", {"key": "done", "outcome": secret}, **as_acme)
    lost = await client.post("/v1/default/reserve", {"key": "lost", "lease_ms": 100}, **as_acme)
    await trio.sleep(0.2)
    await client.post("/v1/default/reserve", {"key": "lost"}, **as_acme)
    late = {"key": "lost", "token": lost.json["token"], "outcome": secret}
    assert (await client.post("/v1/default/commit", late, **as_acme)).status == 409
    queued = await client.post("/v1/default/dispatch", {"key": "queued", "intent": {"body": MARK}}, **as_acme)
    assert queued.status == 202
    told = await client.post("/v1/default/reserve", {"key": "told"}, **as_acme)
    commit = {"key": "told", "token": told.json["token"], "events": [{"body": MARK}]}
    assert (await client.post("/v1/default/commit", commit, **as_acme)).status == 200


async def all_of_acme(client: Client) -> list[Any]:
    """Everything that tenant acme sees of its keys."""
    found: list[Any] = []
    for path in ("records", "incidents"):
        found.append((await client.get(f"/v1/default/{path}", headers=bearer("operator-token"))).json)
    for key in ("held", "done", "lost", "queued", "told"):
        found.append((await client.post("/v1/default/get", {"key": key}, headers=bearer("operator-token"))).json)
    assert len(found[0]["records"]) == 5
    assert len(found[1]["incidents"]) == 1
    assert MARK in str(found)
    return found


def blurred(text: str) -> str:
    """Without what is another each time: ids, tokens, and times."""
    return re.sub(r"\d{3,}", "n", re.sub(r'"token":\s*\d+|\'token\': \d+', "token", UUID.sub("id", text)))


async def answers_over_http(client: Client) -> list[tuple[int, str]]:
    """What the operator of tenant other is told, whatever it asks about keys of the same names."""
    found = []
    for call in scoped(CALLS) + [call for call in CALLS if call.path in ("/v1/batch", "/v1/shards")]:
        answer = await ask(client, call, "default", "other-token")
        found.append((answer.status, blurred(answer.body.decode())))
    return found


async def test_a_tenant_neither_sees_nor_disturbs_another(autojump_clock: MockClock) -> None:
    async with http_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as client:
        alone = await answers_over_http(client)
    async with http_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as client:
        await acme_works(client)
        [incident] = (await client.get("/v1/default/incidents", headers=bearer("operator-token"))).json["incidents"]
        before = await all_of_acme(client)
        beside = await answers_over_http(client)
        path = f"/v1/default/incidents/{incident['id']}/acknowledge"
        (await client.post(path, headers=bearer("other-token"))).problem(404, "NOT_FOUND")
        queued = (await client.post("/v1/default/get", {"key": "queued"}, headers=bearer("operator-token"))).json
        operation = f"/v1/default/operations/{queued['record']['operation_id']}"
        for method in ("GET", "DELETE"):
            (await client.call(method, operation, headers=bearer("other-token"))).problem(404, "NOT_FOUND")
        metrics = (await client.get("/metrics", headers=bearer("other-token"))).body.decode()
        assert 'tenant="other"' in metrics
        assert 'tenant="acme"' not in metrics
        both = (await client.get("/metrics", headers=bearer("metrics-token"))).body.decode()
        assert 'tenant="acme"' in both
        assert 'tenant="other"' in both
        assert await all_of_acme(client) == before
    assert beside == alone
    assert MARK not in str(beside)


async def test_nor_over_rpc(autojump_clock: MockClock) -> None:
    async def all_answers(peer: Peer) -> list[str]:
        await peer.call("auth", token="other-token")
        return [blurred(str(await ask_rpc(peer, method, "default"))) for method in sorted(RPC.keys() - {"auth"})]

    async with rpc_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as server:
        alone = await all_answers(server.connect())
    async with rpc_serving(autojump_clock, tokens=TOKENS, policies=POLICIES) as server:
        client = Client(server.rig)
        await acme_works(client)
        before = await all_of_acme(client)
        beside = await all_answers(server.connect())
        assert await all_of_acme(client) == before
    assert beside == alone
    assert MARK not in str(beside)
