"""The four crash windows of an accepted intent, produced on purpose: SIGKILL at the very place that each row names."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.clients import Lost
from tests.system.dispatch.destination import Destination
from tests.system.dying_server import DIE_FILE
from tests.system.process import Server, assert_clean, eventually

TIMEOUT_MS: Final = 1_000
BODY: Final = '{"qty": 1}'
ANSWER: Final = {"status": 200, "headers": [["Content-Type", "application/json"]]}


def config(destination: Destination, more: str = "") -> str:
    return f"""
[server]
shards = 2
[namespaces.orders]
ttl_ms = 600000
[namespaces.orders.dispatch]
url = "{destination.url}/orders"
timeout_ms = {TIMEOUT_MS}
success = {{ pointer = "/success", equals = true }}
{more}
"""


class Wish:
    """Makes the server die at its next write."""

    def __init__(self, home: Path) -> None:
        self.path = home / "wish"

    def make(self, when: str) -> None:
        self.path.write_text(when)

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


@pytest.fixture
def wish(tmp_path: Path) -> Wish:
    return Wish(tmp_path)


def mortal(home: Path, destination: Destination, wish: Wish, more: str = "") -> Server:
    """A server that dies when it is told to."""
    module = "tests.system.dying_server"
    return Server(home, config(destination, more), extra={DIE_FILE: str(wish.path)}, module=module).start()


@pytest.fixture(params=[True, False], ids=["recognises", "does not"])
def recognises(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture
def destination(recognises: bool) -> Iterator[Destination]:
    with Destination(recognises=recognises) as running:
        yield running


def dedups(recognises: bool) -> str:
    return f"downstream_dedups = {str(recognises).lower()}\n"


def dispatch(server: Server, key: str = "o-1", body: str = BODY) -> dict[str, Any]:
    with server.http_client() as client:
        intent = {"content_type": "application/json", "body": body}
        answer = client.call("dispatch", "orders", key=key, intent=intent)
    assert answer.status == 202, answer
    return dict(answer.members)


def operation(server: Server, operation_id: str, wait_ms: int = 0) -> dict[str, Any]:
    with server.http_client(timeout_s=60) as client:
        answer = client.get(f"/v1/orders/operations/{operation_id}?wait_ms={wait_ms}")
    return dict(answer.members) if answer.status == 200 else {"state": None}


def until_in_doubt(server: Server, operation_id: str) -> None:
    eventually(lambda: operation(server, operation_id)["state"] == "in_doubt", 30)


def die_dispatching(server: Server) -> None:
    with server.http_client() as client, pytest.raises(Lost):
        client.call("dispatch", "orders", key="o-1", intent={"content_type": "application/json", "body": BODY})
    eventually(lambda: not server.alive)
    server.kill()


def test_before_the_first_commit_there_is_nothing(
    tmp_path: Path, wish: Wish, destination: Destination, recognises: bool
) -> None:
    server = mortal(tmp_path, destination, wish, dedups(recognises))
    wish.make("before")
    die_dispatching(server)
    wish.drop()
    with server.start():
        with server.http_client() as client:
            assert client.call("get", "orders", key="o-1").status == 404
        accepted = dispatch(server)
        assert accepted["repeated"] is False
        told = operation(server, accepted["operation_id"], 20_000)
        assert told["state"] == "succeeded"
    assert dict(destination.executions) == {accepted["operation_id"]: 1}
    assert_clean(server.data_dir)


def test_after_the_commit_it_is_delivered_without_anyone_asking(
    tmp_path: Path, wish: Wish, destination: Destination, recognises: bool
) -> None:
    server = mortal(tmp_path, destination, wish, dedups(recognises))
    wish.make("after")
    die_dispatching(server)
    wish.drop()
    assert not destination.requests
    with server.start():
        eventually(lambda: sum(destination.executions.values()) == 1)
        accepted = dispatch(server)
        assert accepted["repeated"] is True
        assert operation(server, accepted["operation_id"], 20_000)["state"] == "succeeded"
    assert dict(destination.executions) == {accepted["operation_id"]: 1}
    assert_clean(server.data_dir)


def kill_once_executed(server: Server, destination: Destination) -> None:
    """The server dies when the destination has done it and has not answered yet."""
    dead = threading.Event()

    def kill(_: str) -> None:
        if not dead.is_set():
            server.kill()
            dead.set()

    destination.executed = kill
    with server.http_client() as client:
        intent = {"content_type": "application/json", "body": BODY}
        with contextlib.suppress(Lost):
            client.call("dispatch", "orders", key="o-1", intent=intent)
    assert dead.wait(20)


def test_executed_before_the_answer_was_stored_and_the_destination_recognises_it(tmp_path: Path, wish: Wish) -> None:
    with Destination(recognises=True) as destination:
        server = mortal(tmp_path, destination, wish, dedups(recognises=True))
        kill_once_executed(server, destination)
        with server.start():
            accepted = dispatch(server)
            told = operation(server, accepted["operation_id"], 30_000)
            assert accepted["repeated"] is True
            assert told["state"] == "succeeded"
            assert told["operation"]["attempt"] == 2
        assert dict(destination.executions) == {accepted["operation_id"]: 1}
        assert destination.requests[accepted["operation_id"]] == 2
    assert_clean(server.data_dir)


def test_executed_before_the_answer_was_stored_and_the_destination_can_be_asked(tmp_path: Path, wish: Wish) -> None:
    with Destination(recognises=False) as destination:
        more = f'downstream_dedups = false\nstatus_url = "{destination.url}/orders/{{operation_id}}"\n'
        server = mortal(tmp_path, destination, wish, more)
        kill_once_executed(server, destination)
        with server.start():
            accepted = dispatch(server)
            told = operation(server, accepted["operation_id"], 30_000)
            assert told["state"] == "succeeded"
            assert told["outcome"] == {**ANSWER, "body": '{"success": true, "number": 1}'}
        assert dict(destination.executions) == {accepted["operation_id"]: 1}
        assert destination.requests[accepted["operation_id"]] == 1
    assert_clean(server.data_dir)


def test_executed_before_the_answer_was_stored_and_nobody_can_say(tmp_path: Path, wish: Wish) -> None:
    """In doubt, and not sent again: also after another restart, until a person settles it."""
    with Destination(recognises=False) as destination:
        server = mortal(tmp_path, destination, wish, dedups(recognises=False))
        kill_once_executed(server, destination)
        for _ in range(2):
            with server.start():
                accepted = dispatch(server)
                until_in_doubt(server, accepted["operation_id"])
                assert operation(server, accepted["operation_id"], 1_500)["state"] == "in_doubt"
        assert destination.requests[accepted["operation_id"]] == 1
        with server.start(), server.http_client() as client:
            [record] = client.get("/v1/orders/records?state=in_doubt").members["records"]
            resolved = client.call("resolve", "orders", key="o-1", token=record["token"], verdict="committed")
            assert resolved.members["result"] == "committed"
            assert operation(server, accepted["operation_id"])["state"] == "succeeded"
        assert destination.requests[accepted["operation_id"]] == 1
    assert_clean(server.data_dir)


def test_absence_is_believed_only_where_the_policy_says_so_and_only_then(tmp_path: Path, wish: Wish) -> None:
    with Destination(recognises=False, known=False) as destination:
        more = (
            f'downstream_dedups = false\nstatus_url = "{destination.url}/orders/{{operation_id}}"\n'
            "status_released = [404]\nstatus_after_ms = 1500\n"
        )
        server = mortal(tmp_path, destination, wish, more)
        kill_once_executed(server, destination)
        with server.start():
            found = dispatch(server)["operation_id"]
            until_in_doubt(server, found)
            assert destination.requests[found] == 1
            # It is this destination's word that it never happened: what comes of believing it is the policy's price.
            assert operation(server, found, 30_000)["state"] == "succeeded"
            assert destination.requests[found] == 2


def test_stored_before_the_caller_was_answered(
    tmp_path: Path, wish: Wish, destination: Destination, recognises: bool
) -> None:
    server = mortal(tmp_path, destination, wish, dedups(recognises))
    destination.executed = lambda _: wish.make("after")
    with server.http_client(timeout_s=60) as client:
        intent = {"content_type": "application/json", "body": BODY}
        accepted = client.call("dispatch", "orders", key="o-1", intent=intent).members
        with pytest.raises(Lost):
            client.get(f"/v1/orders/operations/{accepted['operation_id']}?wait_ms=30000")
    eventually(lambda: not server.alive)
    server.kill()
    wish.drop()
    with server.start():
        again = dispatch(server)
        assert (again["repeated"], again["state"]) == (True, "succeeded")
        told = operation(server, accepted["operation_id"])
        assert told["outcome"] == {**ANSWER, "body": '{"success": true, "number": 1}'}
    assert dict(destination.requests) == {accepted["operation_id"]: 1}
    assert_clean(server.data_dir)
