"""Every crash window of the README's tables, produced on purpose, before an exchange that counts its fills.

The first table: the caller dies. The second: idemactor dies, at the very place that the row names.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from tests.system.clients import HttpClient, Lost, Members, RpcClient, connect, frame
from tests.system.conftest import TWO_NAMESPACES
from tests.system.dying_server import DIE_FILE
from tests.system.exchange import Exchange, Result
from tests.system.process import Server, assert_clean, eventually

Door = Literal["http", "rpc"]
Policy = Literal["retry", "hold"]
NAMESPACE: Final[dict[Policy, str]] = {"retry": "default", "hold": "trade"}
LEASE_MS: Final = 400
OUTCOME: Final = {"status": 200, "headers": [["x-order", "17"]], "body": "filled"}


@pytest.fixture(params=["http", "rpc"])
def door(request: pytest.FixtureRequest) -> Door:
    found: Door = request.param
    return found


@pytest.fixture(params=["retry", "hold"])
def policy(request: pytest.FixtureRequest) -> Policy:
    found: Policy = request.param
    return found


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    with Exchange() as running:
        yield running


class Caller:
    """A caller that can die: at any point."""

    def __init__(self, server: Server, door: Door, namespace: str = "default") -> None:
        self._server = server
        self._door = door
        self._namespace = namespace

    def ask(self, op: str, **members: Any) -> Members:
        """The members of an answer."""
        client: HttpClient | RpcClient
        with self._server.http_client() if self._door == "http" else self._server.rpc_client() as client:
            told = client.call(op, self._namespace, **members)
        return told if isinstance(told, dict) else told.members

    def request(self, op: str, **members: Any) -> bytes:
        """The bytes of a call."""
        if self._door == "rpc":
            return frame(1, op, {"namespace": self._namespace, **members})
        body = json.dumps(members).encode()
        head = f"POST /v1/{self._namespace}/{op} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def die_sending(self, data: bytes) -> None:
        """Send that much and die, as the kernel closes the sockets of a process that was killed."""
        with connect(self._server.http if self._door == "http" else self._server.rpc) as sock:
            sock.sendall(data)

    def record(self, key: str) -> Members | None:
        found: Members | None = self.ask("get", key=key).get("record")
        return found

    def outcome_body(self, told: Members) -> bytes:
        body = told["outcome"]["body"]
        return body if isinstance(body, bytes) else body.encode()


def work(caller: Caller, exchange: Exchange, key: str) -> Members:
    """What every caller does: reserve, ask the exchange where somebody was there before, place, commit."""
    told = caller.ask("reserve", key=key, request_id=uuid.uuid4().hex)
    if not told["proceed"]:
        return told
    if not (told["takeover"] and exchange.was_filled(told["operation_id"])):
        assert exchange.place(key, told["operation_id"]) is Result.FILLED
    return caller.ask("commit", key=key, token=told["token"], outcome=OUTCOME)


# ------------------------------------------------------------------------------------------- the caller's process dies


def test_caller_dies_before_its_reserve_is_stored(server: Server, exchange: Exchange, door: Door) -> None:
    caller = Caller(server, door)
    whole = caller.request("reserve", key="early")
    for end in (1, len(whole) // 2, len(whole) - 1):
        caller.die_sending(whole[:end])
    assert caller.ask("get", key="early")["result"] == "unknown"
    assert work(caller, exchange, "early")["result"] == "committed"
    assert exchange.fills == {"early": 1}
    caller.ask("forget", key="early")


@pytest.mark.parametrize("effect", [False, True], ids=["before-the-effect", "after-the-effect"])
def test_caller_dies_between_reserve_and_commit(
    server: Server, exchange: Exchange, door: Door, policy: Policy, effect: bool
) -> None:
    caller = Caller(server, door, NAMESPACE[policy])
    key = f"{door}-{effect}"
    held = caller.ask("reserve", key=key, lease_ms=LEASE_MS, holder="dead", payload={"qty": 1})
    assert (held["result"], held["takeover"]) == ("reserved", False)
    if effect:
        exchange.place(key, held["operation_id"])

    waiting = work(caller, exchange, key)
    assert (waiting["result"], waiting["proceed"], waiting["holder"]) == ("in_flight", False, "dead")
    assert 0 < waiting["retry_after_ms"] <= LEASE_MS
    time.sleep(waiting["retry_after_ms"] / 1_000 + 0.02)

    if policy == "hold":
        doubtful = work(caller, exchange, key)
        assert (doubtful["result"], doubtful["proceed"]) == ("in_doubt", False)
        assert doubtful["operation_id"] == held["operation_id"]
        assert exchange.fills[key] == effect
        verdict = "committed" if exchange.was_filled(doubtful["operation_id"]) else "released"
        outcome = {"outcome": OUTCOME} if effect else {}
        settled = caller.ask("resolve", key=key, token=held["token"], verdict=verdict, **outcome)
        assert settled["result"] == verdict
        assert work(caller, exchange, key)["result"] == ("completed" if effect else "committed")
    else:
        again = caller.ask("reserve", key=key, request_id="second")
        assert (again["result"], again["takeover"], again["attempt"]) == ("reserved", True, 2)
        assert again["operation_id"] == held["operation_id"]
        assert again["token"] > held["token"]
        # From outside the two windows are the same; only the exchange knows.
        if not exchange.was_filled(again["operation_id"]):
            exchange.place(key, again["operation_id"])
        caller.ask("commit", key=key, token=again["token"], outcome=OUTCOME)
        late = caller.ask("commit", key=key, token=held["token"], outcome=OUTCOME)
        assert (late["result"], late["attempt"]) == ("stale", 2)
        assert caller.record(key)["contested"] is True  # type: ignore[index]
    assert exchange.fills == {key: 1}
    caller.ask("forget", key=key)


def test_caller_dies_after_its_commit_is_stored(server: Server, exchange: Exchange, door: Door, policy: Policy) -> None:
    caller = Caller(server, door, NAMESPACE[policy])
    key = f"{door}-committed"
    held = caller.ask("reserve", key=key)
    exchange.place(key, held["operation_id"])
    caller.die_sending(caller.request("commit", key=key, token=held["token"], outcome=OUTCOME))
    eventually(lambda: (caller.record(key) or {})["state"] == "committed")

    told = work(caller, exchange, key)
    assert (told["result"], told["proceed"], told["operation_id"]) == ("completed", False, held["operation_id"])
    assert caller.outcome_body(told) == b"filled"
    again = caller.ask("commit", key=key, token=held["token"], outcome={"status": 500, "body": "other"})
    assert (again["result"], again["repeated"], again["expires_at"]) == ("committed", True, told["expires_at"])
    assert caller.outcome_body(work(caller, exchange, key)) == b"filled"
    assert exchange.fills == {key: 1}
    caller.ask("forget", key=key)


# ------------------------------------------------------------------------------------------------ idemactor itself dies


class Doomed:
    """A server that dies where it is told to."""

    def __init__(self, home: Path) -> None:
        self._order = home / "die"
        self.server = Server(
            home, TWO_NAMESPACES, module="tests.system.dying_server", extra={DIE_FILE: str(self._order)}
        )

    def dies(self, when: Literal["before", "after"], caller: Caller, op: str, **members: Any) -> None:
        """Make the call that kills it, and bring it back."""
        self._order.write_text(when)
        with pytest.raises(Lost):
            caller.ask(op, **members)
        assert self.server.wait() == -9
        self._order.unlink()
        self.server.start()


@pytest.fixture
def doomed(home: Path) -> Iterator[Doomed]:
    found = Doomed(home)
    with found.server:
        yield found
    assert_clean(found.server.data_dir)


def test_server_dies_before_the_write(doomed: Doomed, exchange: Exchange, door: Door) -> None:
    caller = Caller(doomed.server, door, "trade")
    doomed.dies("before", caller, "reserve", key="k", request_id="mine", lease_ms=60_000)
    assert caller.ask("get", key="k")["result"] == "unknown"
    held = caller.ask("reserve", key="k", request_id="mine", lease_ms=60_000)
    assert (held["result"], held["repeated"], held["attempt"]) == ("reserved", False, 1)
    exchange.place("k", held["operation_id"])

    doomed.dies("before", caller, "commit", key="k", token=held["token"], outcome=OUTCOME)
    assert work(caller, exchange, "k")["result"] == "in_flight"
    told = caller.ask("commit", key="k", token=held["token"], outcome=OUTCOME)
    assert (told["result"], told["repeated"]) == ("committed", False)

    other = caller.ask("reserve", key="other")
    doomed.dies("before", caller, "release", key="other", token=other["token"])
    assert caller.record("other")["state"] == "pending"  # type: ignore[index]
    told = caller.ask("release", key="other", token=other["token"])
    assert (told["result"], told["repeated"]) == ("released", False)
    assert exchange.fills == {"k": 1}


def test_server_dies_after_the_write_before_the_answer(doomed: Doomed, exchange: Exchange, door: Door) -> None:
    caller = Caller(doomed.server, door, "trade")
    doomed.dies("after", caller, "reserve", key="k", request_id="mine", lease_ms=60_000)
    # Stored, and nobody was told: only who asked for it, by the same request_id, gets it.
    assert work(caller, exchange, "k")["result"] == "in_flight"
    held = caller.ask("reserve", key="k", request_id="mine", lease_ms=60_000)
    assert (held["result"], held["repeated"], held["attempt"], held["takeover"]) == ("reserved", True, 1, False)
    exchange.place("k", held["operation_id"])

    doomed.dies("after", caller, "commit", key="k", token=held["token"], outcome=OUTCOME)
    told = caller.ask("commit", key="k", token=held["token"], outcome=OUTCOME)
    assert (told["result"], told["repeated"]) == ("committed", True)
    assert caller.outcome_body(work(caller, exchange, "k")) == b"filled"

    other = caller.ask("reserve", key="other")
    doomed.dies("after", caller, "release", key="other", token=other["token"])
    assert caller.record("other") is None
    told = caller.ask("release", key="other", token=other["token"])
    assert (told["result"], told["repeated"]) == ("released", True)

    doomed.dies("after", caller, "accept", key="third", request_id="its", outcome=OUTCOME)
    told = caller.ask("accept", key="third", request_id="its", outcome=OUTCOME)
    assert (told["result"], told["repeated"]) == ("accepted", True)
    assert caller.ask("accept", key="third", request_id="another")["result"] == "completed"
    assert exchange.fills == {"k": 1}


def test_server_dies_at_any_other_time(home: Path, exchange: Exchange, door: Door) -> None:
    with Server(home, TWO_NAMESPACES) as server:
        caller = Caller(server, door)
        held = caller.ask("reserve", key="k", request_id="mine")
        server.restart()
        again = caller.ask("reserve", key="k", request_id="mine")
        assert (again["token"], again["lease_expires_at"]) == (held["token"], held["lease_expires_at"])
        longer = caller.ask("extend", key="k", token=held["token"], lease_ms=90_000)
        server.restart()
        assert caller.record("k")["lease_expires_at"] == longer["lease_expires_at"]  # type: ignore[index]
        exchange.place("k", held["operation_id"])
        caller.ask("doubt", key="k", token=held["token"], reason="timeout")
        server.restart()
        record = caller.record("k")
        assert record is not None
        assert (record["state"], record["reason"]) == ("in_doubt", "timeout")
        committed = caller.ask("commit", key="k", token=held["token"], outcome=OUTCOME)
        server.restart()
        told = work(caller, exchange, "k")
        assert (told["result"], told["expires_at"]) == ("completed", committed["expires_at"])
        assert caller.outcome_body(told) == b"filled"
        assert exchange.fills == {"k": 1}
    assert_clean(home / "data")
