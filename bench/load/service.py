"""The program of a service: tasks that reserve a key and commit it, over and over, with one of three clients.

Run as ``python -m bench.load.service CLIENT ADDRESS TASKS SECONDS``; it prints what it saw as the generators do.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from bench.harness import latencies_ms
from bench.load.protocols import COMPARE_AND_DELETE, LEASE_MS
from bench.load.spec import Outcome
from bench.processes import BenchError, output_bytes

Cycle = Callable[[str], Awaitable[None]]
"""Reserve a key and commit it."""

NAMESPACE: Final = "default"
_INSERT: Final = (
    "INSERT INTO deduplication VALUES (%s, %s, 'pending', now() + interval '1 hour') ON CONFLICT (key) DO NOTHING"
)
_UPDATE: Final = "UPDATE deduplication SET state = 'committed' WHERE key = %s AND token = %s"


def measure(client: str, address: str, tasks: int, seconds: float) -> dict[str, float]:
    """Run the program in a process of its own and return its figures."""
    arguments = [client, address, str(tasks), str(seconds)]
    outcome = Outcome.from_bytes(output_bytes([sys.executable, "-m", "bench.load.service", *arguments]))
    figures = {"ops_per_s": outcome.in_time / outcome.seconds, **latencies_ms(outcome.latencies_s)}
    return {**figures, "generator_busy": outcome.cpu_s / outcome.seconds}


@asynccontextmanager
async def _idemactor(address: str, _tasks: int) -> AsyncIterator[list[Cycle]]:
    from idemactor.client import Client, Reserved

    async with Client(address) as client:

        async def cycle(key: str) -> None:
            reserved = await client.reserve(NAMESPACE, key)
            if not isinstance(reserved, Reserved):
                raise BenchError(f"{key} was {reserved}")
            await client.commit(NAMESPACE, key, reserved.token)

        yield [cycle]


@asynccontextmanager
async def _redis(address: str, tasks: int) -> AsyncIterator[list[Cycle]]:
    from redis.asyncio import BlockingConnectionPool, Redis

    host, port = address.rsplit(":", 1)
    pool = BlockingConnectionPool(host=host, port=int(port), max_connections=tasks)
    async with Redis(connection_pool=pool) as client:
        compare_and_delete = client.register_script(COMPARE_AND_DELETE.decode())

        async def cycle(key: str) -> None:
            token = os.urandom(8).hex()
            if not await client.set(key, token, nx=True, px=LEASE_MS):
                raise BenchError(f"{key} was taken")
            if await compare_and_delete(keys=[key], args=[token]) != 1:
                raise BenchError(f"{key} was lost")

        yield [cycle]
    await pool.aclose()


@asynccontextmanager
async def _postgres(conninfo: str, tasks: int) -> AsyncIterator[list[Cycle]]:
    from psycopg import AsyncConnection

    async with AsyncExitStack() as stack:
        cycles: list[Cycle] = []
        for _ in range(tasks):
            connection = await AsyncConnection.connect(conninfo, autocommit=True)
            await stack.enter_async_context(connection)
            connection.prepare_threshold = 0

            async def cycle(key: str, connection: AsyncConnection = connection) -> None:
                token = int.from_bytes(os.urandom(6), "big")
                for statement, values in ((_INSERT, (key, token)), (_UPDATE, (key, token))):
                    done = await connection.execute(statement, values)
                    if done.rowcount != 1:
                        raise BenchError(f"{key} was taken or lost")

            cycles.append(cycle)
        yield cycles


_CLIENTS: Final = {"idemactor": _idemactor, "redis": _redis, "postgres": _postgres}


async def _run(client: str, address: str, tasks: int, seconds: float) -> Outcome:
    latencies: array[float] = array("d")
    prefix = os.urandom(8).hex()
    async with _CLIENTS[client](address, tasks) as cycles:

        async def work(task: int) -> None:
            cycle, number = cycles[task % len(cycles)], 0
            now = time.perf_counter()
            while now < end:
                await cycle(f"{prefix}-{task}-{number}")
                number += 1
                latencies.append(time.perf_counter() - now)
                now += latencies[-1]

        cpu, started = time.process_time(), time.perf_counter()
        end = started + seconds
        async with asyncio.TaskGroup() as group:
            for task in range(tasks):
                group.create_task(work(task))
        taken = time.perf_counter() - started
    return Outcome(taken, time.process_time() - cpu, len(latencies), 0, 0, latencies)


def main() -> None:
    """Be the service that the arguments describe."""
    client, address, tasks, seconds = sys.argv[1:]
    sys.stdout.buffer.write(asyncio.run(_run(client, address, int(tasks), float(seconds))).to_bytes())


if __name__ == "__main__":
    main()
