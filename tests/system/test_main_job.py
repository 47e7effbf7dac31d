"""The main job on real input: webhooks come in, an exchange is called, and no signal is ever filled twice.

Real senders' webhooks go through a gateway to a real server; the exchange is slow, failing, soft-failing, dead or cuts
its connections, and the server is killed in between and restarted on the same data.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from idemactor.gateway.request import RawRequest
from tests.system.clients import Members
from tests.system.exchange import Exchange, Mode
from tests.system.gateway import Case, Gateway, cases, configuration
from tests.system.process import Server, assert_calm, assert_clean

CASES: Final = cases()
AT_ONCE: Final = 50
SENDERS: Final = 200
SETTLE_S: Final = 30.0
KILLS: Final = 3


@dataclass(frozen=True)
class Rig:
    server: Server
    exchange: Exchange
    gateway: Gateway

    def send(self, webhook: RawRequest) -> tuple[int, Members]:
        """Send a webhook as its sender does; the status and what came back."""
        connection = http.client.HTTPConnection(self.gateway.address, timeout=60)
        try:
            connection.request("POST", webhook.path, webhook.body, dict(webhook.headers))
            response = connection.getresponse()
            members: Members = json.loads(response.read())
            return response.status, members
        finally:
            connection.close()

    def send_all(self, times: int) -> list[tuple[int, Members]]:
        """Every case's first webhook, each ``times`` at once."""
        webhooks = [case.first for case in CASES for _ in range(times)]
        with ThreadPoolExecutor(SENDERS) as pool:
            return list(pool.map(self.send, webhooks))

    def settle(self) -> None:
        """The exchange is well again: senders resend, the reconciler works, until every signal is answered 200."""
        self.exchange.mode = Mode.FAST
        end = time.monotonic() + SETTLE_S
        while True:
            self.gateway.reconcile()
            statuses = {case.id: self.send(case.first)[0] for case in CASES}
            if set(statuses.values()) == {200}:
                break
            assert time.monotonic() < end, statuses
        assert len(self.exchange.fills) == len(CASES)
        assert set(self.exchange.fills.values()) == {1}, self.exchange.fills


@contextlib.contextmanager
def rig(home: Path, mode: Mode = Mode.FAST, seed: int = 0) -> Iterator[Rig]:
    with (
        Server(home, configuration()) as server,
        Exchange(mode) as exchange,
        Gateway(server, exchange, seed) as gateway,
    ):
        yield Rig(server, exchange, gateway)
        assert_calm(server)


@pytest.mark.parametrize(
    ("mode", "times"), [*((mode, AT_ONCE) for mode in Mode), (Mode.FAST, 1), (Mode.FAST, 2), (Mode.CUT, 1)]
)
def test_no_signal_is_filled_twice(home: Path, mode: Mode, times: int) -> None:
    with rig(home, mode) as running:
        answers = running.send_all(times)
        assert len(answers) == times * len(CASES)
        assert running.exchange.most_fills <= 1
        if mode in (Mode.FAST, Mode.SLOW):
            # One of each was told to go on, and did; nobody was told anything but that, that it was done, or to wait.
            committed = [told for status, told in answers if told["result"] == "committed"]
            assert len(committed) == len(CASES)
            assert {status for status, _ in answers} <= {200, 409}
        else:
            assert all(told["result"] != "committed" for _, told in answers)
        running.settle()


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.SLOW, Mode.CUT, Mode.SOFT])
def test_no_signal_is_filled_twice_though_the_server_is_killed(home: Path, mode: Mode, seed: int) -> None:
    chance = random.Random(seed)
    with rig(home, mode, seed) as running:

        def crash() -> None:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.05, 0.6))
                running.server.restart()

        crashes = threading.Thread(target=crash)
        crashes.start()
        running.send_all(AT_ONCE)
        crashes.join()
        assert running.exchange.most_fills <= 1
        running.settle()
    assert_clean(home / "data")


def test_killed_between_every_effect_and_its_commit(home: Path) -> None:
    with rig(home) as running:
        effects = threading.Barrier(len(CASES) + 1)
        killed = threading.Event()

        def hold() -> None:
            effects.wait(30)
            killed.wait(30)

        running.gateway.before_commit = hold
        with ThreadPoolExecutor(len(CASES)) as pool:
            answers = [pool.submit(running.send, case.first) for case in CASES]
            effects.wait(30)
            running.server.restart()
            # While the effects are done and uncommitted, nobody else goes on.
            for case in CASES:
                assert running.send(case.first)[1]["result"] == "in_flight"
            killed.set()
            assert [answer.result()[0] for answer in answers] == [200] * len(CASES)
        running.gateway.before_commit = lambda: None
        running.settle()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("calm")) as running:
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_repeats_near_misses_and_secrets(calm: Rig, case: Case) -> None:
    assert calm.send(case.first)[1]["result"] == "committed"
    for what, _, request, _ in case.payload.variants("resends"):
        status, told = calm.send(request)
        assert (status, told["result"]) == (200, "completed"), what
    fills = 1
    for what, expect, request, _ in case.payload.variants("near_misses"):
        status, told = calm.send(request)
        expected = {"new": (200, "committed"), "mismatch": (422, "mismatch"), "invalid": (400, None)}
        assert (status, told.get("result")) == expected[expect], what
        fills += expect == "new"
    mine = [count for signal, count in calm.exchange.fills.items() if signal.startswith(f"{case.namespace} ")]
    assert mine == [1] * fills
    _assert_hidden(calm, case)


def _assert_hidden(running: Rig, case: Case) -> None:
    with running.server.http_client() as client:
        shown = client.get(f"/v1/{case.namespace}/records").body + client.get("/metrics").body
    stored = b"".join(file.read_bytes() for file in running.server.data_dir.iterdir())
    for secret in case.payload.secrets:
        assert secret.encode() not in shown
        assert secret.encode() not in stored
        assert secret not in running.server.log
