"""A socket that is carried by asyncio's callbacks: what does not fit waits, and nothing is torn apart."""

from __future__ import annotations

import anyio
import pytest

from idemactor.client import Client
from idemactor.client.carrier import _Carrier
from tests.client.fake import FakeServer, with_server
from tests.client.loops import SOCKETS

PAYLOAD_CHARS = 200_000
CALLS = 60


async def reserve(client: Client, number: int) -> None:
    await client.reserve("trade", f"k{number}", payload=str(number % 10) * PAYLOAD_CHARS)


def test_what_a_socket_does_not_take_waits_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    for name in ("pause_writing", "resume_writing"):

        def noted(self: _Carrier, name: str = name, call: object = getattr(_Carrier, name)) -> None:
            happened.append(name)
            call(self)  # type: ignore[operator]

        monkeypatch.setattr(_Carrier, name, noted)

    async def body(server: FakeServer, client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(CALLS):
                tasks.start_soon(reserve, client, number)
        payloads = [params["payload"] for _, params in server.log]
        assert [(payload[0], len(payload)) for payload in payloads] == [
            (str(number % 10), PAYLOAD_CHARS) for number in range(CALLS)
        ]
        assert server.connections == 1

    with_server(SOCKETS, body)
    assert happened[:2] == ["pause_writing", "resume_writing"]


def test_a_server_that_is_gone_while_much_is_to_be_written_loses_no_call() -> None:
    async def body(server: FakeServer, client: Client) -> None:
        left = iter([None] * 10 + ["cut"])
        server.fault = lambda _server, _request: next(left, None)
        async with anyio.create_task_group() as tasks:
            for number in range(CALLS):
                tasks.start_soon(reserve, client, number)
        assert {params["key"] for _, params in server.log} == {f"k{number}" for number in range(CALLS)}
        assert server.connections == 2

    with_server(SOCKETS, body)
