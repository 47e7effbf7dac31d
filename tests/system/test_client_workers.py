"""The client that goes straight to the process that owns a key."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
import pytest

from idemactor.client import Client, Completed, Reserved
from tests.system.process import Server
from tests.system.test_client_server import both_loops, run
from tests.system.test_workers import CONFIG, key_of
from tests.system.worker_server import Workers

SOON_S: Final = 5.0


async def soon(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so."""
    with anyio.fail_after(SOON_S):
        while not await check():  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def directly(server: Workers, client: Client, worker: int) -> None:
    """Wait until the client asks a worker directly: that goes on while all others stand still."""
    key = key_of(server.shard_map(), worker)
    await client.reserve("default", key)
    others = [server.pid_of(number) for number in range(server.workers) if number != worker]

    async def asks() -> bool:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            with anyio.move_on_after(0.5):
                return (await client.get("default", key)) is not None
            return False
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    await soon(asks)


@both_loops
@pytest.mark.parametrize("unix", [False, True])
def test_each_key_is_asked_of_its_owner(backend: str, unix: bool, home: Path) -> None:
    rpc = [f"unix:{home}/r.sock"] if unix else ["127.0.0.1:0"]

    async def main() -> None:
        with Workers(home, 2, CONFIG, rpc=rpc) as server:
            async with Client(server.rpc, direct=True) as client:
                for worker in range(2):
                    await directly(server, client, worker)

    run(backend, main)


@both_loops
def test_a_server_that_is_started_anew_with_other_addresses_is_found(backend: str, home: Path) -> None:
    async def main() -> None:
        with Workers(home, 2, CONFIG, rpc=[f"unix:{home}/r.sock"]) as server:
            async with Client(server.rpc, direct=True) as client:
                for worker in range(2):
                    await directly(server, client, worker)
                for workers in (3, 1, 2):
                    server.terminate()
                    server.workers = workers
                    server.start()
                    for number in range(12):
                        async with client.hold("default", f"{workers}-{number}"):
                            pass
                        assert isinstance(await client.reserve("default", f"{workers}-{number}"), Completed)

    run(backend, main)


@both_loops
def test_a_server_of_one_process_is_asked_as_ever(backend: str, home: Path) -> None:
    async def main() -> None:
        with Server(home, CONFIG) as server:
            async with Client(server.rpc, direct=True) as client:
                for number in range(20):
                    assert isinstance(await client.reserve("default", f"k{number}"), Reserved)

    run(backend, main)
