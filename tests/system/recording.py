"""Callers of a real server that write down every call as a history wants it: sent, returned, told or lost."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from idemactor.core.commands import Accept, Command, Commit, Doubt, Extend, Get, Release, Reserve, Resolve, Verdict
from idemactor.core.keys import Identity
from idemactor.core.policy import OnDoubt, OnLeaseExpiry, Policy
from idemactor.core.record import Outcome
from idemactor.core.replies import InDoubt, Reply, Reserved
from tests.histories.calls import Call, members_of, reply_of
from tests.system.clients import HttpClient, Lost, RpcClient
from tests.system.test_crash import _as_json
from tests.system.worker_server import PatientHttp, PatientRpc

DAY_MS: Final = 86_400_000
CONFIG: Final = f"""
[namespaces.default]
ttl_ms = {DAY_MS}
[namespaces.trade]
ttl_ms = {DAY_MS}
on_lease_expiry = "hold"
[namespaces.again]
ttl_ms = {DAY_MS}
on_doubt = "retry"
"""
POLICIES: Final = {
    "default": Policy(ttl_ms=DAY_MS),
    "trade": Policy(ttl_ms=DAY_MS, on_lease_expiry=OnLeaseExpiry.HOLD),
    "again": Policy(ttl_ms=DAY_MS, on_doubt=OnDoubt.RETRY),
}
LEASES_MS: Final = (10, 60, 250, 5_000)
TTLS_MS: Final = (None, *(50, 300) * 6)
"""What is committed is soon forgotten, mostly: a key that is committed for good has no more history."""
LOST_MAX: Final = 10
"""Of so many lost calls of one key the orders can still be searched; then a new key takes its place."""
TIMEOUT_S: Final = 0.4
"""Callers are impatient: to one who is stopped for a while many answers are lost."""

_STARTED_MS: Final = time.time() * 1_000 - time.monotonic() * 1_000


def now_ms() -> float:
    """Milliseconds since the epoch, by a clock that is never set."""
    return _STARTED_MS + time.monotonic() * 1_000


class Recorder:
    """All calls of a round, and the tokens that anybody was told; any thread may write.

    Attributes:
        calls: In the order in which they ended.
        keys: What callers may ask about.
    """

    def __init__(self, keys: list[Identity]) -> None:
        self.calls: list[Call] = []
        self.keys = keys
        self._lost: Counter[Identity] = Counter()
        self._tokens: dict[Identity, list[int]] = {}
        self._lock = threading.Lock()

    def note(self, call: Call) -> None:
        with self._lock:
            self.calls.append(call)
            if call.reply is None:
                self._count_lost(call.command.identity)
            if isinstance(call.reply, Reserved):
                self._tokens.setdefault(call.command.identity, []).append(call.reply.token)

    def _count_lost(self, identity: Identity) -> None:
        self._lost[identity] += 1
        if self._lost[identity] == LOST_MAX and identity in self.keys:
            self.keys[self.keys.index(identity)] = identity._replace(key=f"{identity.key}+")

    def tokens(self, identity: Identity) -> list[int]:
        """The latest tokens of a key."""
        with self._lock:
            return self._tokens.get(identity, [])[-4:]

    def died(self) -> None:
        """No server is alive now: what was lost by now has had its effect, or never will."""
        end = now_ms()
        with self._lock:
            self.calls = [replace(c, returned_ms=end) if c.returned_ms is None else c for c in self.calls]


class RecordedCaller:
    """One caller; what is lost it sends once more, elsewhere, as it was."""

    def __init__(self, recorder: Recorder, chance: random.Random, *, over_http: bool) -> None:
        self._recorder = recorder
        self._chance = chance
        self._over_http = over_http
        self._lost: Command | None = None
        self._client: HttpClient | RpcClient

    def work(self, addresses: Callable[[str], list[str]], over: threading.Event) -> None:
        """Call until ``over``; ``addresses`` says where the doors of a kind are now."""
        while not over.is_set():
            address = self._chance.choice(addresses("http" if self._over_http else "rpc"))
            make = PatientHttp if self._over_http else PatientRpc
            try:
                with make(address, timeout_s=TIMEOUT_S) as self._client:
                    lost, self._lost = self._lost, None
                    if lost is not None:
                        self._ask(lost)
                    while not over.is_set():
                        self._turn(self._chance.choice(self._recorder.keys))
            except Lost:
                time.sleep(0.02)

    def _ask(self, command: Command) -> Reply:
        name, members = type(command).__name__.lower(), members_of(command)
        namespace = command.identity.namespace
        begin = now_ms()
        try:
            if isinstance(self._client, HttpClient):
                told = self._client.call(name, namespace, **_as_json(members)).members
            else:
                told = self._client.call(name, namespace, **members)
        except Lost:
            self._lost = command
            self._recorder.note(Call(command, POLICIES[namespace], begin, None, None))
            raise
        call = Call(command, POLICIES[namespace], begin, now_ms(), reply_of(command, told))
        self._recorder.note(call)
        assert call.reply is not None
        return call.reply

    def _turn(self, key: Identity) -> None:
        chance = self._chance
        time.sleep(chance.random() * 0.01)
        roll = chance.random()
        if roll < 0.08:
            self._ask(Accept(key, uuid.uuid4().hex, ttl_ms=chance.choice(TTLS_MS), outcome=self._outcome()))
        elif roll < 0.2:
            self._ask(Get(key))
        elif roll < 0.35:
            self._late(key)
        else:
            self._session(key)

    def _session(self, key: Identity) -> None:
        chance = self._chance
        wait_ms = chance.choice((0, 0, 40))
        reply = self._ask(Reserve(key, uuid.uuid4().hex, lease_ms=chance.choice(LEASES_MS), wait_ms=wait_ms))
        if isinstance(reply, InDoubt) and chance.random() < 0.5:
            self._resolve(key)
        if not isinstance(reply, Reserved):
            return
        time.sleep(chance.random() * 0.02)
        if chance.random() < 0.2:
            self._ask(Extend(key, reply.token, chance.choice(LEASES_MS)))
        if chance.random() < 0.85:
            self._ask(self._ending(key, reply.token))

    def _late(self, key: Identity) -> None:
        """With a token that anybody was told once."""
        tokens = self._recorder.tokens(key)
        if tokens:
            self._ask(self._ending(key, self._chance.choice(tokens)))

    def _resolve(self, key: Identity) -> None:
        tokens = self._recorder.tokens(key)
        if tokens:
            verdict = Verdict.COMMITTED if self._chance.random() < 0.1 else Verdict.RELEASED
            # A verdict of committed takes no time to live: it is kept for a day.
            outcome = self._outcome() if verdict is Verdict.COMMITTED else None
            self._ask(Resolve(key, max(tokens), verdict, outcome))

    def _ending(self, key: Identity, token: int) -> Command:
        chance = self._chance
        match chance.randrange(8):
            case 0 | 1 | 2:
                return Commit(key, token, self._outcome(), chance.choice(TTLS_MS))
            case 3 | 4 | 5:
                return Release(key, token)
            case 6:
                return Doubt(key, token, "who knows")
            case _:
                return Extend(key, token, chance.choice(LEASES_MS))

    def _outcome(self) -> Outcome:
        return Outcome(200, (), self._chance.randbytes(12))
