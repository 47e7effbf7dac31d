"""A program that dispatches: many tasks that hand over an intent and wait until it is durable, with one of two clients.

Run as ``python -m bench.load.dispatching JSON`` with the fields of ``Dispatching``; it prints those of ``Dispatched``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgpack

from bench.fill import INTENT
from bench.harness import latencies_ms
from bench.processes import BenchError, output_bytes

Client = Literal["idemactor", "postgres"]
Dispatch = Callable[[str], Awaitable[str]]
"""Hand over an intent under a key; returns the operation's id."""


@dataclass(frozen=True, slots=True)
class Dispatching:
    """One load.

    Attributes:
        namespace: Of idemactor.
        tasks: How many calls are under way, where the load is closed.
        count: How many operations, 0: as many as ``seconds`` have room for.
        rate: Calls a second where the load is open, 0 where it is closed.
        due_at: When they may be delivered, milliseconds since the epoch; 0: at once.
        accounts: Of how many accounts they are, in turn, each of which has its own delivered in order; 0: each of its
            own, so that none waits for another.
    """

    client: Client
    address: str
    namespace: str = "orders"
    tasks: int = 32
    count: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    due_at: int = 0
    accounts: int = 0

    def account_of(self, key: str) -> str | None:
        """Whose operation it is, where several are of one account."""
        number = int(key.rpartition("-")[2])
        return f"account-{number % self.accounts}" if self.accounts else None


@dataclass(slots=True)
class Dispatched:
    """What came of it.

    Attributes:
        seconds: How long the whole took.
        cpu_s: CPU seconds that the program took for it.
        began: When each operation's call began, by its id, seconds since the epoch; of an open load.
    """

    seconds: float
    cpu_s: float
    latencies_s: list[float]
    began: dict[str, float] = field(default_factory=dict)

    def sample(self) -> dict[str, float]:
        """The figures of what was accepted."""
        figures = {"ops_per_s": len(self.latencies_s) / self.seconds, **latencies_ms(self.latencies_s)}
        return {**figures, "generator_busy": self.cpu_s / self.seconds}


def carry_out(load: Dispatching) -> Dispatched:
    """Run the program in a process of its own. Raises: BenchError."""
    said = output_bytes([sys.executable, "-m", "bench.load.dispatching", json.dumps(asdict(load))])
    return Dispatched(**json.loads(said))


class Calls:
    """MessagePack-RPC on one connection, as many calls under way as there are tasks."""

    def __init__(self, load: Dispatching, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._load = load
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._number = 0

    async def dispatch(self, key: str) -> str:
        """One operation."""
        intent = {"content_type": "application/json", "body": INTENT}
        told: dict[str, Any] = {"namespace": self._load.namespace, "key": key, "intent": intent}
        if self._load.due_at:
            told["not_before"] = self._load.due_at
        account = self._load.account_of(key)
        if account is not None:
            told["order_key"] = account
        self._number += 1
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = answer
        self._writer.write(msgpack.packb([0, self._number, "dispatch", [told]]))
        return await answer

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Hand out answers until the connection ends."""
        unpacker = msgpack.Unpacker(raw=False)
        while data := await reader.read(262_144):
            unpacker.feed(data)
            for _, number, error, result in unpacker:
                waiting = self._waiting.pop(number)
                if error is None:
                    waiting.set_result(result["operation_id"])
                else:
                    waiting.set_exception(BenchError(f"a dispatch was refused: {error}"))


@asynccontextmanager
async def _idemactor(load: Dispatching) -> AsyncIterator[list[Dispatch]]:
    host, port = load.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    calls = Calls(load, writer)
    reading = asyncio.create_task(calls.read(reader))
    yield [calls.dispatch]
    writer.close()
    await reading


@asynccontextmanager
async def _postgres(load: Dispatching) -> AsyncIterator[list[Dispatch]]:
    from psycopg import AsyncConnection

    from examples.order_api import outbox
    from examples.order_api.postgres_alone import accepting

    due_at = datetime.fromtimestamp(load.due_at / 1000, UTC) if load.due_at else None
    async with AsyncExitStack() as stack:
        dispatches: list[Dispatch] = []
        for _ in range(load.tasks):
            connection = await AsyncConnection.connect(load.address, autocommit=True)
            await stack.enter_async_context(connection)
            connection.prepare_threshold = 0

            async def dispatch(key: str, connection: Any = connection) -> str:
                order_id, account = uuid.uuid4(), load.account_of(key) or key
                # As the API does it, but in one round trip.
                async with connection.pipeline(), connection.transaction():
                    await connection.execute(outbox.LANE, (account,))
                    await connection.execute(outbox.ACCEPT, accepting(order_id, key, account, INTENT, due_at))
                return str(order_id)

            dispatches.append(dispatch)
        yield dispatches


_CLIENTS: Final = {"idemactor": _idemactor, "postgres": _postgres}


async def _run(load: Dispatching) -> Dispatched:
    done, prefix = Dispatched(0.0, 0.0, []), os.urandom(8).hex()

    async def once(dispatch: Dispatch, key: str) -> None:
        began, at = time.perf_counter(), time.time()
        operation_id = await dispatch(key)
        if load.rate:
            done.began[operation_id] = at
        done.latencies_s.append(time.perf_counter() - began)

    async with _CLIENTS[load.client](load) as dispatches:
        cpu, started = time.process_time(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            if load.rate:
                await _open(
                    load, group, lambda number: once(dispatches[number % len(dispatches)], f"{prefix}-{number}")
                )
            else:
                numbers = iter(range(load.count or sys.maxsize))
                until = started + (load.seconds if not load.count else float("inf"))

                async def work(task: int) -> None:
                    for number in numbers:
                        await once(dispatches[task % len(dispatches)], f"{prefix}-{number}")
                        if time.perf_counter() >= until:
                            return

                for task in range(load.tasks):
                    group.create_task(work(task))
        done.seconds, done.cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return done


async def _open(load: Dispatching, group: asyncio.TaskGroup, call: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Begin each call when its time has come, whatever became of those before."""
    started = time.perf_counter()
    for number in range(int(load.rate * load.seconds)):
        await asyncio.sleep(max(0.0, started + number / load.rate - time.perf_counter()))
        group.create_task(call(number))


def main() -> None:
    """Be the program that the argument describes."""
    print(json.dumps(asdict(asyncio.run(_run(Dispatching(**json.loads(sys.argv[1])))))))


if __name__ == "__main__":
    main()
