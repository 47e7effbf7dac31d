"""Dispatch through real processes: the client, the command line and HTTP against a server of one and of two workers."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import anyio
import pytest

from idemactor.cli.exits import Exit
from idemactor.client import Client, Committed, Dispatched, OperationState, OutboxEntry, Outcome, Reserved, event
from tests.system.process import Server
from tests.system.test_cli import Cli
from tests.system.test_workers import CONFIG
from tests.system.worker_server import Workers

KEYS = 24


def started(home: Path, workers: int) -> Server:
    return Server(home) if workers == 1 else Workers(home, workers, CONFIG)


async def fetched(client: Client, count: int) -> list[OutboxEntry]:
    found: list[OutboxEntry] = []
    with anyio.fail_after(30):
        while len(found) < count:
            found += await client.poll("default", max_entries=1_000, wait_ms=5_000, visibility_ms=60_000)
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_all_of_it_survives_a_kill(workers: int, home: Path) -> None:
    async def hand_over(server: Server) -> dict[str, str]:
        async with Client(server.rpc) as client:
            ids = {}
            for number in range(KEYS):
                told = await client.dispatch("default", f"k{number}", {"n": number}, order_key=f"o{number % 2}")
                assert isinstance(told, Dispatched)
                ids[f"k{number}"] = told.operation_id
            granted = await client.reserve("default", "e")
            assert isinstance(granted, Reserved)
            await client.commit("default", "e", granted.token, events=[event("it happened")])
            return ids

    async def carry_out(server: Server, ids: dict[str, str]) -> None:
        async with Client(server.rpc) as client:
            seen: dict[str | None, list[str]] = {"o0": [], "o1": [], None: []}
            for _ in range(KEYS + 1):
                if sum(map(len, seen.values())) == KEYS + 1:
                    break
                for entry in await fetched(client, 1):
                    seen[entry.order_key].append(entry.key)
                    assert entry.operation_id == ids.get(entry.key, entry.operation_id)
                    await client.ack("default", entry, outcome=None if entry.kind == "event" else Outcome(200))
            assert seen["o0"] == [f"k{n}" for n in range(0, KEYS, 2)]
            assert seen["o1"] == [f"k{n}" for n in range(1, KEYS, 2)]
            assert seen[None] == ["e"]
            for operation_id in ids.values():
                assert (await client.operation("default", operation_id)).state is OperationState.SUCCEEDED

    with started(home, workers) as server:
        ids = anyio.run(hand_over, server, backend="trio")
        server.kill()
        server.start()
        anyio.run(carry_out, server, ids, backend="trio")


@pytest.mark.parametrize("workers", [1, 2])
def test_whoever_waits_is_woken_wherever_it_asks(workers: int, home: Path) -> None:
    async def main(server: Server) -> None:
        async with Client(server.rpc) as one, Client(server.rpc) as other:
            got: list[OutboxEntry] = []
            states: list[OperationState] = []

            async def fetch() -> None:
                got.extend(await other.poll("default", wait_ms=60_000))

            for number in range(8):
                got.clear()
                states.clear()
                with anyio.fail_after(10):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(fetch)
                        await anyio.sleep(0.05)
                        told = await one.dispatch("default", f"k{number}", "do it")
                        operation_id = told.operation_id
                [entry] = got
                assert entry.operation_id == operation_id

                async def watch(operation_id: str = operation_id) -> None:
                    states.append((await other.operation("default", operation_id, wait_ms=60_000)).state)

                with anyio.fail_after(10):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(watch)
                        await anyio.sleep(0.05)
                        assert isinstance(await one.ack("default", entry), Committed)
                assert states == [OperationState.SUCCEEDED]

    with started(home, workers) as server:
        anyio.run(main, server, backend="trio")


def test_the_command_line_and_http_see_the_same(home: Path) -> None:
    with Server(home) as server:
        cli = Cli(home, server)
        operation_id = cli("dispatch", "k", "--body", "do it", "--quiet").stdout.strip()
        place = f"http://{server.http}/v1/default/operations/{operation_id}"
        with urllib.request.urlopen(place) as answer:
            assert json.load(answer)["state"] == "queued"
        assert cli("operation", operation_id).returncode == Exit.IN_FLIGHT
        [entry] = json.loads(cli("outbox", "poll", "--json").stdout)["entries"]
        assert (entry["id"], entry["body"]) == (operation_id, "do it")
        assert cli("cancel", operation_id).returncode == Exit.UNCANCELLABLE
        assert cli("records", "--state", "pending").stdout.splitlines()[1].endswith("dispatched: delivering")
        acked = cli("outbox", "ack", operation_id, "k", str(entry["token"]), "--status", "200", "--body", "done")
        assert acked.returncode == 0
        ended = cli("operation", operation_id, "--wait")
        assert (ended.returncode, ended.stdout.endswith("done\n")) == (0, True)
        with urllib.request.urlopen(f"{place}?wait_ms=1000") as answer:
            assert json.load(answer)["outcome"]["body"] == "done"
