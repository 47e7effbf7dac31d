"""SIGKILL at random moments: callers over both doors, and a history per key that must still be explainable.

``CRASH_ROUNDS`` says how often, ``SYSTEM_SEED`` replays the choices of a run (the moments are the machine's).
"""

from __future__ import annotations

import base64
import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.clients import HttpClient, Lost, Members, RpcClient
from tests.system.history import Grant, History, Key
from tests.system.process import Server, assert_calm, assert_clean

ROUNDS: Final = int(os.environ.get("CRASH_ROUNDS", "12"))
CALLERS: Final = 16
KEYS: Final = 24
WORK_S: Final = (0.05, 0.4)
BATCH: Final = 500
CONFIG: Final = """
[server]
shards = 3
[namespaces.default]
ttl_ms = 86400000
[namespaces.trade]
ttl_ms = 86400000
on_lease_expiry = "hold"
[namespaces.again]
ttl_ms = 86400000
on_doubt = "retry"
"""
"""What is committed or released stays so for longer than the longest run."""
NAMESPACES: Final = ("default", "trade", "again")
LEASES_MS: Final = (1, 40, 150, 5_000, 60_000)

Settle = Callable[[Members], None]


@dataclass(frozen=True)
class Lease:
    """A call that was lost with the server, to be sent again as it was, and what to make of its answer."""

    op: str
    key: Key
    members: Members
    settle: Settle


class Caller:
    """One caller: reserves keys, and commits, releases, extends, doubts or forgets about them."""

    def __init__(self, history: History, chance: random.Random, over_http: bool) -> None:
        self._history = history
        self._chance = chance
        self._over_http = over_http
        self._lost: Lease | None = None
        self._client: HttpClient | RpcClient
        self.calls = 0

    def work(self, server: Server, keys: list[Key], failures: list[BaseException]) -> None:
        """Go on until the server is gone."""
        try:
            with server.http_client() if self._over_http else server.rpc_client() as self._client:
                lost, self._lost = self._lost, None
                if lost is not None:
                    self._ask(lost.op, lost.key, lost.members, lost.settle)
                while True:
                    self._turn(self._chance.choice(keys))
        except Lost:
            pass
        except BaseException as error:
            failures.append(error)

    def _ask(self, op: str, key: Key, members: Members, settle: Settle) -> None:
        """A call and its answer; one that is lost is remembered, to be repeated."""
        namespace, name = key
        self.calls += 1
        try:
            if isinstance(self._client, HttpClient):
                told = self._client.call(op, namespace, key=name, **_as_json(members)).members
            else:
                told = self._client.call(op, namespace, key=name, **members)
        except Lost:
            self._lost = Lease(op, key, members, settle)
            raise
        settle(told)

    def _turn(self, key: Key) -> None:
        if self._chance.random() < 0.1:
            self._accept(key)
            return
        request_id = uuid.uuid4().hex
        members = {"request_id": request_id, "lease_ms": self._chance.choice(LEASES_MS)}
        if self._chance.random() < 0.2:
            members["wait_ms"] = self._chance.randrange(1, 60)
        self._ask("reserve", key, members, lambda told: self._reserved(key, request_id, told))

    def _reserved(self, key: Key, request_id: str, told: Members) -> None:
        if told["result"] != "reserved":
            assert told["result"] in {"in_flight", "in_doubt", "completed", "released"}, told
            assert told["proceed"] is False
            return
        assert told["proceed"] is True
        grant = self._history.granted(key, request_id, told)
        match self._chance.randrange(8):
            case 0 | 1:
                self._commit(grant)
            case 2 | 3 | 4:
                self._release(grant)
            case 5:
                self._extend(grant)
            case 6:
                self._doubt(grant)
            case _:
                # Gone, as if it had crashed: its lease will lapse.
                return

    def _accept(self, key: Key) -> None:
        outcome = self._chance.randbytes(self._chance.randrange(0, 200))
        members = {"request_id": uuid.uuid4().hex, "outcome": {"status": 200, "body": outcome}}

        def settle(told: Members) -> None:
            if told["result"] == "accepted":
                self._history.committed(key, None, outcome)

        self._ask("accept", key, members, settle)

    def _commit(self, grant: Grant) -> None:
        outcome = self._chance.randbytes(self._chance.randrange(0, 2_000))

        def settle(told: Members) -> None:
            if told["result"] == "committed":
                self._history.committed(grant.key, grant.token, outcome)

        members = {"token": grant.token, "outcome": {"status": 201, "headers": [["x", "y"]], "body": outcome}}
        self._ask("commit", grant.key, members, settle)

    def _release(self, grant: Grant) -> None:
        def settle(told: Members) -> None:
            if told["result"] == "released":
                self._history.released(grant)

        self._history.freeing(grant)
        self._ask("release", grant.key, {"token": grant.token}, settle)

    def _extend(self, grant: Grant) -> None:
        before = grant.lease_end
        grant.lease_end = None

        def settle(told: Members) -> None:
            grant.lease_end = told["lease_expires_at"] if told["result"] == "extended" else before

        self._ask("extend", grant.key, {"token": grant.token, "lease_ms": self._chance.choice(LEASES_MS)}, settle)

    def _doubt(self, grant: Grant) -> None:
        def settle(told: Members) -> None:
            # Its lease may have lapsed: then somebody else may have taken over, and be done.
            assert told["result"] in {"in_doubt", "stale", "unknown", "already_committed"}, told
            if told["result"] == "in_doubt" and self._chance.random() < 0.5:
                self._resolve(grant)

        self._ask("doubt", grant.key, {"token": grant.token, "reason": "who knows"}, settle)

    def _resolve(self, grant: Grant) -> None:
        def settle(told: Members) -> None:
            if told["result"] == "released":
                self._history.released(grant)

        self._history.freeing(grant)
        self._ask("resolve", grant.key, {"token": grant.token, "verdict": "released"}, settle)


def _as_json(members: Members) -> Members:
    outcome = members.get("outcome")
    if outcome is None:
        return members
    plain = {name: value for name, value in outcome.items() if name != "body"}
    return {**members, "outcome": {**plain, "body_b64": base64.b64encode(outcome["body"]).decode()}}


def test_nothing_promised_is_lost_by_a_kill(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    history = History()
    callers = [Caller(history, random.Random(chance.random()), number % 2 == 0) for number in range(CALLERS)]
    server = Server(home, CONFIG)
    try:
        for number in range(ROUNDS):
            keys = [(chance.choice(NAMESPACES), f"r{number}-k{index}") for index in range(KEYS)]
            if chance.random() < 0.25:
                server.start_and_kill(chance.uniform(0.0, 0.6))
            server.start()
            _verify(server, history)
            _run_round(server, callers, keys, chance.uniform(*WORK_S))
            history.check()
            assert_clean(server.data_dir)
        server.start()
        _verify(server, history)
        assert_calm(server)
    finally:
        server.kill()
    _assert_worked(history, callers)
    calls = sum(caller.calls for caller in callers)
    print(f"{ROUNDS} kills, {calls} calls for {len(history.ledgers)} keys: nothing promised was lost")


def _run_round(server: Server, callers: list[Caller], keys: list[Key], work_s: float) -> None:
    failures: list[BaseException] = []
    threads = [threading.Thread(target=caller.work, args=(server, keys, failures)) for caller in callers]
    for thread in threads:
        thread.start()
    time.sleep(work_s)
    server.kill()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _assert_worked(history: History, callers: list[Caller]) -> None:
    """A run that did hardly anything proves nothing."""
    ledgers = history.ledgers.values()
    assert sum(caller.calls for caller in callers) > ROUNDS * CALLERS
    assert sum(len(ledger.grants) for ledger in ledgers) > ROUNDS * 5
    assert sum(ledger.committed is not None for ledger in ledgers) > ROUNDS
    assert sum(len(ledger.released) for ledger in ledgers) > ROUNDS


# ------------------------------------------------------------------------------------------------- after each restart


def _verify(server: Server, history: History) -> None:
    """What was acknowledged before the kill is still so."""
    with server.rpc_client() as client:
        told = _batched(client, [("get", key, {}) for key in history.ledgers])
        for (key, ledger), answer in zip(history.ledgers.items(), told, strict=True):
            record = answer.get("record")
            if ledger.committed is not None:
                token, outcome = ledger.committed
                assert record is not None, f"the commit of {key} is lost"
                assert record["state"] == "committed", f"the commit of {key} is lost: {record}"
                assert record["outcome"]["body"] == outcome
                assert token is None or record["token"] == token
            if record is not None:
                assert record["token"] not in ledger.released, f"the release of {key} is lost: {record}"
                assert record["token"] >= max(ledger.grants, default=0) or ledger.freeing, f"{key} went back: {record}"
        repeats = [
            (key, max(ledger.released))
            for key, ledger in history.ledgers.items()
            if ledger.released and max(ledger.released) == max(ledger.freeing)
        ]
        for (key, _), answer in zip(
            repeats, _batched(client, [("release", key, {"token": token}) for key, token in repeats]), strict=True
        ):
            assert (answer["result"], answer["repeated"]) == ("released", True), f"the release of {key} is forgotten"


def _batched(client: RpcClient, calls: list[tuple[str, Key, Members]]) -> list[Any]:
    answers: list[Any] = []
    for start in range(0, len(calls), BATCH):
        ops = [
            {"op": op, "namespace": namespace, "key": name, **members}
            for op, (namespace, name), members in calls[start : start + BATCH]
        ]
        answers += client.request("batch", {"ops": ops})["results"]
    return answers


def test_the_client_errors_of_a_crash_are_no_answers(home: Path) -> None:
    """A call that a kill cuts off ends in an error at the caller, never in an answer that is none."""
    with Server(home, CONFIG) as server, server.rpc_client() as rpc, server.http_client() as http:
        assert rpc.call("reserve", key="a")["result"] == "reserved"
        assert http.call("reserve", key="b").status == 201
        server.kill()
        for ask in (lambda: rpc.call("commit", key="a", token=1), lambda: http.call("commit", key="b", token=1)):
            with pytest.raises(Lost):
                ask()


def _granted(token: int, reserved_at: int, lease_ms: int) -> Members:
    return {
        "token": token,
        "attempt": 1,
        "operation_id": "o",
        "reserved_at": reserved_at,
        "lease_expires_at": reserved_at + lease_ms,
        "repeated": False,
    }


def test_the_history_sees_what_must_not_be() -> None:
    key = ("default", "k")
    twice = History()
    twice.granted(key, "a", _granted(1, 0, 100))
    twice.granted(key, "b", _granted(2, 50, 100))
    with pytest.raises(AssertionError, match="while its lease ran"):
        twice.check()

    early = History()
    first = early.granted(key, "a", _granted(1, 0, 100))
    early.granted(key, "b", _granted(2, 50, 100))
    early.freeing(first)
    with pytest.raises(AssertionError, match="before its release was sent"):
        early.check()

    backwards = History()
    backwards.granted(key, "a", _granted(2, 0, 10))
    backwards.granted(key, "b", _granted(1, 20, 10))
    with pytest.raises(AssertionError, match="went back"):
        backwards.check()

    shared = History()
    shared.granted(key, "a", _granted(1, 0, 10))
    with pytest.raises(AssertionError, match="two callers"):
        shared.granted(key, "b", _granted(1, 0, 10))

    lost = History()
    lost.granted(key, "a", _granted(1, 0, 10))
    lost.committed(key, 1, b"")
    lost.granted(key, "b", _granted(2, 20, 10))
    with pytest.raises(AssertionError, match="after its commit"):
        lost.check()
