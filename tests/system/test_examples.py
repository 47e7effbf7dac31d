"""What stands in ``examples/``, against a real server and an exchange that fills whatever it is sent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.system.process import Server, environment, eventually
from tests.system.programs import (
    EXAMPLES,
    PATIENCE_S,
    FakeExchange,
    alive,
    children_of,
    fake_exchange,
    free_port,
    go_environment,
    listening,
    require_go,
    started,
    webhook_gateway,
)

LEASE_MS: Final = 800
"""The lease of gateways that are killed."""

_order_numbers = iter(range(1, 1_000_000))


def unique(what: str) -> str:
    """A symbol, or a key, that no other test has."""
    return f"{what}{next(_order_numbers)}"


@pytest.fixture(scope="module")
def exchange() -> Iterator[FakeExchange]:
    with fake_exchange() as found:
        yield found


# ------------------------------------------------------------------------------------------------------- the gateway


@dataclass(frozen=True)
class Gateway:
    """The gateway, in a process."""

    port: int
    process: subprocess.Popen[bytes]

    def send(self, order: Mapping[str, Any] | str, headers: Sequence[tuple[str, str]] = ()) -> httpx.Response:
        body = order if isinstance(order, str) else json.dumps(order)
        url = f"http://127.0.0.1:{self.port}/webhook"
        return httpx.post(url, content=body, headers=list(headers), timeout=PATIENCE_S)


@contextlib.contextmanager
def gateway(server_rpc: str, exchange_url: str, **more: str) -> Iterator[Gateway]:
    with webhook_gateway(server_rpc, exchange_url, **more) as (port, process):
        yield Gateway(port, process)


@pytest.fixture(scope="module")
def running(server: Server, exchange: FakeExchange) -> Iterator[Gateway]:
    with gateway(server.rpc, exchange.url) as found:
        yield found
        found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(PATIENCE_S) == 0


def order(symbol: str, **more: Any) -> dict[str, Any]:
    return {"symbol": symbol, "action": "LONG", "quantity": 0.001, **more}


def test_the_first_outcome_for_every_resend(running: Gateway, exchange: FakeExchange) -> None:
    symbol = unique("FIRST")
    first = running.send(order(symbol, apiKey="one"))
    assert first.status_code == 200
    assert first.json()["success"] is True
    assert first.headers["content-type"] == "application/json"
    written = f'{{"quantity": 1e-3, "apiKey": "two", "symbol": "{symbol}", "action": "LONG"}}'
    for again in (order(symbol, apiKey="one"), order(symbol), written):
        answer = running.send(again)
        assert (answer.status_code, answer.content) == (200, first.content)
    assert exchange.fills(symbol) == 1
    for other in (order(symbol, quantity=0.01), order(symbol, action="SHORT"), order(symbol, test=True)):
        assert running.send(other).json()["order_id"] != first.json()["order_id"]
    assert exchange.fills(symbol) == 4


def test_many_at_once(running: Gateway, exchange: FakeExchange) -> None:
    before = exchange.fills("SLOW")
    sent = order("SLOW", idempotencyKey=unique("slow-"))
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: running.send(sent), range(20)))
    done = [answer for answer in answers if answer.status_code == 200]
    others = [answer for answer in answers if answer.status_code != 200]
    assert len(done) >= 1
    assert others
    for answer in others:
        assert (answer.status_code, answer.json()["result"]) == (409, "in_flight")
        assert 1 <= int(answer.headers["Retry-After"]) <= 5
    assert {answer.content for answer in [*done, running.send(sent)]} == {done[0].content}
    assert exchange.fills("SLOW") == before + 1


def test_named_keys(running: Gateway, exchange: FakeExchange) -> None:
    symbol, key = unique("NAMED"), unique("named-")
    first = running.send(order(symbol), [("Idempotency-Key", f'"{key}"')])
    assert first.status_code == 200
    assert running.send(order(symbol), [("Idempotency-Key", key)]).content == first.content
    assert running.send(order(symbol, idempotencyKey=key)).content == first.content
    assert running.send(order(symbol, quantity=2), [("Idempotency-Key", key)]).status_code == 422
    assert exchange.fills(symbol) == 1
    twice = [("Idempotency-Key", key), ("Idempotency-Key", key)]
    assert running.send(order(symbol), twice).status_code == 400
    assert running.send(order(symbol, idempotencyKey="another"), [("Idempotency-Key", key)]).status_code == 400
    assert exchange.fills(symbol) == 1


@pytest.mark.parametrize(
    "body",
    [
        *("", "[]", "{", '{"symbol": "X", "action": "LONG"}', '{"symbol": " ", "action": "LONG", "quantity": 1}'),
        '{"symbol": "X", "action": "LONG", "quantity": 1e999999999}',
        '{"symbol": "X", "action": "LONG", "quantity": 1, "stop": 1e999999999}',
        json.dumps({"symbol": "X", "action": "LONG", "quantity": 1, "idempotencyKey": "k" * 257}),
    ],
)
def test_what_is_no_order(running: Gateway, body: str) -> None:
    answer = running.send(body)
    assert (answer.status_code, answer.json()["result"]) == (400, "invalid")


@pytest.mark.parametrize("symbol", ["REFUSED", "SOFT"])
def test_a_refused_order_may_be_sent_again(running: Gateway, exchange: FakeExchange, symbol: str) -> None:
    sent = order(symbol, idempotencyKey=unique("refused-"))
    for _ in range(2):
        answer = running.send(sent)
        assert (answer.status_code, answer.json()["result"]) == (502, "refused")
    assert exchange.fills(symbol) == 0


@pytest.mark.parametrize(("symbol", "fills"), [("DOWN", 0), ("BROKEN", 1), ("CUT", 1), ("HANG", 1)])
def test_an_unclear_order_is_not_sent_again(running: Gateway, exchange: FakeExchange, symbol: str, fills: int) -> None:
    before = exchange.fills(symbol)
    sent = order(symbol, idempotencyKey=unique("unclear-"))
    answers = [running.send(sent) for _ in range(3)]
    for answer in answers:
        assert (answer.status_code, answer.json()["result"]) == (409, "in_doubt")
        assert "idemactor resolve" in answer.json()["detail"]
    assert len({answer.json()["operation_id"] for answer in answers}) == 1
    assert exchange.fills(symbol) == before + fills


def test_a_sender_that_hangs_up(running: Gateway, exchange: FakeExchange) -> None:
    before = exchange.fills("SLOW")
    sent = order("SLOW", idempotencyKey=unique("impatient-"))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"http://127.0.0.1:{running.port}/webhook", json=sent, timeout=0.3)
    eventually(lambda: running.send(sent).status_code == 200)
    assert exchange.fills("SLOW") == before + 1


def test_an_exchange_that_is_away(server: Server) -> None:
    with gateway(server.rpc, f"http://127.0.0.1:{free_port()}") as lonely:
        answer = lonely.send(order(unique("AWAY")))
        assert (answer.status_code, answer.json()["result"]) == (502, "refused")


def test_a_server_that_is_away(exchange: FakeExchange) -> None:
    symbol = unique("ALONE")
    with gateway(f"127.0.0.1:{free_port()}", exchange.url) as lonely:
        answer = lonely.send(order(symbol))
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert exchange.fills(symbol) == 0


def kill_in_the_middle(server: Server, exchange: FakeExchange, sent: Mapping[str, Any], **more: str) -> None:
    """A gateway dies between the fill of a slow order and its commit."""
    before = exchange.fills("SLOW")
    with (
        gateway(server.rpc, exchange.url, GATEWAY_LEASE_MS=str(LEASE_MS), **more) as doomed,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(doomed.send, sent)
        eventually(lambda: exchange.fills("SLOW") == before + 1)
        doomed.process.kill()
        with pytest.raises(httpx.TransportError):
            answer.result()


def test_a_gateway_that_is_killed(server: Server, exchange: FakeExchange, running: Gateway) -> None:
    key = unique("killed-")
    sent = order("SLOW", idempotencyKey=key)
    kill_in_the_middle(server, exchange, sent)
    fills = exchange.fills("SLOW")
    eventually(lambda: running.send(sent).json()["result"] == "in_doubt")
    with server.http_client() as client:
        token = client.call("get", "trade", key=key).members["record"]["token"]
    # What the answer tells its reader to do.
    command = [sys.executable, "-m", "idemactor", "resolve", "--address", server.rpc, "--namespace", "trade"]
    given = [key, str(token), "committed", "--status", "200", "--body", "filled, as the exchange says"]
    subprocess.run([*command, *given], env=environment(), check=True, capture_output=True, timeout=PATIENCE_S)
    answer = running.send(sent)
    assert (answer.status_code, answer.text) == (200, "filled, as the exchange says")
    assert exchange.fills("SLOW") == fills


def test_a_takeover_asks_the_exchange_first(server: Server, exchange: FakeExchange) -> None:
    sent = order("SLOW", idempotencyKey=unique("taken-over-"))
    kill_in_the_middle(server, exchange, sent, IDEMACTOR_NAMESPACE="default")
    fills = exchange.fills("SLOW")
    with gateway(server.rpc, exchange.url, IDEMACTOR_NAMESPACE="default") as second:
        eventually(lambda: second.send(sent).status_code == 200)
    assert exchange.fills("SLOW") == fills


@dataclass(frozen=True)
class Demo:
    """Gateway and exchange, as one command starts them."""

    process: subprocess.Popen[bytes]
    port: int
    exchange_port: int
    children: Sequence[int]

    def send(self, order: Mapping[str, Any]) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{self.port}/webhook", json=order, timeout=PATIENCE_S)

    def fills(self, symbol: str) -> int:
        return int(httpx.get(f"http://127.0.0.1:{self.exchange_port}/fills").json().get(symbol, 0))


@pytest.fixture
def demo(server: Server) -> Iterator[Demo]:
    port, exchange_port = free_port(), free_port()
    told = {
        "GATEWAY_BIND": f"127.0.0.1:{port}",
        "EXCHANGE_ADDRESS": f"127.0.0.1:{exchange_port}",
        "IDEMACTOR_ADDRESS": server.rpc,
    }
    with started([sys.executable, str(EXAMPLES / "webhook_gateway" / "demo.py")], port, told) as process:
        eventually(lambda: listening(exchange_port))
        children = children_of(process.pid)
        assert len(children) == 2
        yield Demo(process, port, exchange_port, children)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_demo_runs_both_and_leaves_neither(demo: Demo, ended_by: signal.Signals) -> None:
    symbol = unique("DEMO")
    eventually(lambda: demo.send(order(symbol)).status_code == 200)
    assert demo.fills(symbol) == 1
    os.kill(demo.process.pid, ended_by)
    assert demo.process.wait(PATIENCE_S) == 0
    assert not any(map(alive, demo.children))


def test_what_the_demo_has_begun_comes_to_its_end(demo: Demo) -> None:
    """On Ctrl-C, which a terminal sends to all processes of the demo's group."""
    pid = demo.process.pid
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(demo.send, order("SLOW"))
        eventually(lambda: demo.fills("SLOW") == 1)
        for one in [pid, *demo.children]:
            if os.getpgid(one) == os.getpgid(pid):
                os.kill(one, signal.SIGINT)
        answer = sent.result()
    assert (answer.status_code, answer.json()["success"]) == (200, True)
    assert demo.process.wait(PATIENCE_S) == 0


# ----------------------------------------------------------------------------------------------- over plain HTTP


@dataclass(frozen=True)
class Program:
    """One language's example; ``run`` gives its exit code and what it wrote to standard output."""

    command: Sequence[str]
    told: dict[str, str] = field(default_factory=dict)

    def start(self, key: str, symbol: str, quantity: str = "1", **more: str) -> subprocess.Popen[str]:
        told = environment(self.told | more)
        command = [*self.command, key, symbol, quantity]
        return subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, key: str, symbol: str, quantity: str = "1", **more: str) -> tuple[int, str]:
        code, said, _ = self.end(key, symbol, quantity, **more)
        return code, said

    def end(self, key: str, symbol: str, quantity: str = "1", **more: str) -> tuple[int, str, str]:
        """The same, and what it complained of last."""
        with self.start(key, symbol, quantity, **more) as process:
            said, complaint = process.communicate(timeout=PATIENCE_S)
            print(complaint, file=sys.stderr)
            return process.returncode, said, (complaint.splitlines() or [""])[-1]


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Go example, built."""
    require_go()
    home = tmp_path_factory.mktemp("go")
    built = subprocess.run(
        ["go", "build", "-o", str(home / "order"), str(EXAMPLES / "http" / "order.go")],
        env=environment(go_environment(home)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return str(home / "order")


@pytest.fixture(scope="module", params=["shell", "node", "go"])
def program(request: pytest.FixtureRequest, server: Server, exchange: FakeExchange) -> Program:
    here = EXAMPLES / "http"
    match request.param:
        case "shell":
            command = ["sh", str(here / "order.sh")]
        case "node":
            command = ["node", str(here / "order.mjs")]
        case _:
            command = [request.getfixturevalue("go_program")]
    told = {"IDEMACTOR_URL": f"http://{server.http}", "EXCHANGE_URL": exchange.url, "EXCHANGE_TIMEOUT_S": "1"}
    return Program(command, told)


def test_done_once(program: Program, exchange: FakeExchange) -> None:
    key, symbol = unique('a "quoted" \\ k\u00e9y \U0001f680 $(id) %s '), unique("ONCE")
    code, said = program.run(key, symbol)
    assert code == 0
    assert json.loads(said)["success"] is True
    again, repeated = program.run(key, symbol)
    assert again == 0
    assert json.loads(said)["order_id"] in repeated
    assert program.run(key, symbol, "2")[0] == 12
    assert exchange.fills(symbol) == 1


def test_a_refusal_says_why(program: Program) -> None:
    with program.start("k" * 257, unique("WHY")) as process:
        _, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "IDEMPOTENCY_INVALID_REQUEST: " in complaint
    assert "256" in complaint


def test_three_at_once(program: Program, exchange: FakeExchange) -> None:
    key, before = unique("three-"), exchange.fills("SLOW")
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: program.run(key, "SLOW", TRIES="20", EXCHANGE_TIMEOUT_S="10"), range(3)))
    assert [code for code, _ in answers] == [0, 0, 0]
    assert exchange.fills("SLOW") == before + 1


@pytest.mark.parametrize("symbol", ["REFUSED", "SOFT"])
def test_released(program: Program, exchange: FakeExchange, symbol: str) -> None:
    key = unique("released-")
    for _ in range(2):
        code, _, complaint = program.end(key, symbol)
        assert (code, complaint) == (30, "the exchange refused it")
    assert exchange.fills(symbol) == 0


def test_released_where_nobody_listens(program: Program) -> None:
    key, nobody = unique("nobody-"), f"http://127.0.0.1:{free_port()}"
    code, _, complaint = program.end(key, "X", EXCHANGE_URL=nobody)
    assert (code, complaint) == (30, "the exchange cannot be reached")
    assert program.run(key, "X")[0] == 0


@pytest.mark.parametrize(("symbol", "fills"), [("DOWN", 0), ("BROKEN", 1), ("CUT", 1), ("HANG", 1)])
def test_in_doubt(program: Program, exchange: FakeExchange, symbol: str, fills: int) -> None:
    key, before = unique("doubt-"), exchange.fills(symbol)
    assert program.run(key, symbol)[0] == 11
    assert program.run(key, symbol)[0] == 11
    assert exchange.fills(symbol) == before + fills


def test_what_could_not_be_recorded_is_said(program: Program, server: Server, exchange: FakeExchange) -> None:
    """Somebody else has ended the attempt meanwhile: nobody is to read that it is in doubt, or may be sent again."""
    key, before = unique("unrecorded-"), exchange.fills("HANG")
    with program.start(key, "HANG", EXCHANGE_TIMEOUT_S="3") as process, server.http_client() as client:
        eventually(lambda: exchange.fills("HANG") == before + 1)
        token = client.call("get", "trade", key=key).members["record"]["token"]
        assert client.call("commit", "trade", key=key, token=token).status == 200
        _, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "not recorded: " in complaint.splitlines()[-1]


def test_in_flight(program: Program, server: Server, exchange: FakeExchange) -> None:
    key, symbol = unique("flight-"), unique("FLIGHT")
    with server.http_client() as client:
        assert client.call("reserve", "trade", key=key).status == 201
    assert program.run(key, symbol, TRIES="1")[0] == 10
    assert exchange.fills(symbol) == 0


@pytest.mark.parametrize("filled", [True, False])
def test_takeover(program: Program, server: Server, exchange: FakeExchange, filled: bool) -> None:
    key, symbol = unique("takeover-"), unique("TAKEOVER")
    with server.http_client() as client:
        first = client.call("reserve", "default", key=key, lease_ms=1).members
    if filled:
        exchange.fill(symbol, first["operation_id"])
    code, _ = program.run(key, symbol, IDEMACTOR_NAMESPACE="default")
    assert code == 0
    assert exchange.fills(symbol) == 1


def test_the_server_is_restarted_in_the_middle(program: Program, exchange: FakeExchange, home: Path) -> None:
    address, before = f"127.0.0.1:{free_port()}", exchange.fills("SLOW")
    with Server(home, "[namespaces.trade]\n", http=(address,)) as own:
        told = {"IDEMACTOR_URL": f"http://{address}", "EXCHANGE_TIMEOUT_S": "10"}
        with program.start("restarted", "SLOW", **told) as process:
            eventually(lambda: exchange.fills("SLOW") == before + 1, every_s=0.05)
            # Down when the commit comes, which is half a second after the fill.
            own.kill()
            time.sleep(0.8)
            own.start()
            process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert program.run("restarted", "SLOW", **told)[0] == 0
    assert exchange.fills("SLOW") == before + 1
