"""The other half of ``postgres_alone``: delivers what was accepted, and settles what is left unknown.

python -m examples.order_api.relay

Woken by NOTIFY, and looking at start and every ``SCAN_MS`` all the same: a notification that nobody heard is lost, an
entry is not. It is a process of its own because psycopg speaks asyncio and not trio. Any number of them may run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import psycopg

from examples.order_api import outbox
from examples.order_api.verdict import Verdict, verdict_of

RECONNECT_S: Final = 0.5
SETTLED_AT_ONCE_MAX: Final = 256
FACTOR: Final = 2.0

log = logging.getLogger("relay")


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, str(default)))


@dataclass(frozen=True, slots=True)
class Settings:
    """What the relay is told by its environment; times in milliseconds.

    Attributes:
        recognises: Whether the engine recognises an operation's id, so that sending it again is safe.
        status_url: How to ask what became of an order, with ``{operation_id}``; empty: there is no way.
        absence_after_ms: How long after the last attempt "not found" means that it did not happen; 0: never.
        lease_ms: For how long an attempt is left alone. Longer than its time-out, or two would be under way.
    """

    database: str = os.environ.get("DATABASE", "")
    url: str = os.environ.get("ENGINE_URL", "http://127.0.0.1:9000/orders")
    recognises: bool = os.environ.get("ENGINE_RECOGNISES", "") == "1"
    status_url: str = os.environ.get("ENGINE_STATUS_URL", "")
    absence_after_ms: int = _number("ENGINE_ABSENCE_AFTER_MS", 0)
    timeout_ms: int = _number("ENGINE_TIMEOUT_MS", 3_000)
    lease_ms: int = _number("LEASE_MS", 5_000)
    concurrency: int = _number("CONCURRENCY", 8)
    first_ms: int = _number("RETRY_FIRST_MS", 200)
    longest_ms: int = _number("RETRY_LONGEST_MS", 60_000)
    scan_ms: int = _number("SCAN_MS", 1_000)


@dataclass(frozen=True, slots=True)
class Entry:
    """One attempt, claimed."""

    seq: int
    attempt: int
    order_id: uuid.UUID
    body: bytes
    perhaps_sent: bool
    too_late: bool


Statement = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class Relay:
    """One connection claims and asks, one settles, one listens."""

    settings: Settings
    http: aiohttp.ClientSession
    work: Any
    settling: Any
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    _settled: list[tuple[Statement, asyncio.Future[None]]] = field(default_factory=list)
    _something: asyncio.Event = field(default_factory=asyncio.Event)
    _free: int = 0

    async def run(self, listening: Any) -> None:
        """Work until something breaks: then everything is begun anew, from the database."""
        self._free = self.settings.concurrency
        await listening.execute(f"LISTEN {outbox.CHANNEL}")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(listening))
            tasks.create_task(self._settle())
            tasks.create_task(self._deliver(tasks))

    async def _listen(self, listening: Any) -> None:
        async for _ in listening.notifies():
            self.bell.set()

    # ------------------------------------------------------------------------------------------------------ delivering

    async def _deliver(self, tasks: asyncio.TaskGroup) -> None:
        loop, scan_s = asyncio.get_running_loop(), self.settings.scan_ms / 1000
        scan_at = loop.time()
        while True:
            if loop.time() >= scan_at:
                await self._scan(tasks)
                scan_at = loop.time() + scan_s
            self.bell.clear()
            for entry in await self._take() if self._free else []:
                self._free -= 1
                tasks.create_task(self._attempt(entry))
            try:
                async with asyncio.timeout_at(scan_at):
                    await self.bell.wait()
            except TimeoutError:
                continue

    async def _scan(self, tasks: asyncio.TaskGroup) -> None:
        """What no bell tells: leases that ran out, and doubts that it is time to ask about."""
        phase = "queued" if self.settings.recognises else "in_doubt"
        await self.work.execute(outbox.LAPSE, {"phase": phase})
        if self.settings.status_url:
            told = {"count": self.settings.concurrency, "status_after_ms": self.settings.absence_after_ms}
            asked = await self.work.execute(outbox.ASK, told | self._backoff())
            for seq, attempt, order_id, late in await asked.fetchall():
                tasks.create_task(self._ask(seq, attempt, order_id, late and self.settings.absence_after_ms > 0))

    async def _take(self) -> list[Entry]:
        told = {"count": self._free, "lease_ms": self.settings.lease_ms}
        return [Entry(*row) for row in await (await self.work.execute(outbox.TAKE, told)).fetchall()]

    async def _attempt(self, entry: Entry) -> None:
        try:
            await self._change(await self._outcome(entry))
        finally:
            self._free += 1
            # The next of the same account may go.
            self.bell.set()

    async def _outcome(self, entry: Entry) -> Statement:
        if entry.too_late and not entry.perhaps_sent:
            return _end(entry.seq, entry.attempt, "expired", None)
        headers = {"Idempotency-Key": str(entry.order_id), "Content-Type": "application/json"}
        answer, retry_after_s = b"", 0.0
        try:
            async with self.http.post(self.settings.url, data=entry.body, headers=headers) as response:
                answer = await response.read()
                verdict = verdict_of(response.status, answer)
                retry_after_s = _seconds(response.headers.get("Retry-After", ""))
        except aiohttp.ClientConnectorError:
            verdict = Verdict.NOT_EXECUTED
        except (aiohttp.ClientError, TimeoutError):
            verdict = Verdict.AMBIGUOUS
        return self._settlement(entry, verdict, answer, retry_after_s)

    def _settlement(self, entry: Entry, verdict: Verdict, answer: bytes, retry_after_s: float) -> Statement:
        again = verdict is Verdict.NOT_EXECUTED or (verdict is Verdict.AMBIGUOUS and self.settings.recognises)
        if verdict in (Verdict.SUCCEEDED, Verdict.FAILED):
            return _end(entry.seq, entry.attempt, verdict.value, answer)
        perhaps_sent = entry.perhaps_sent or verdict is Verdict.AMBIGUOUS
        if not again or (entry.too_late and perhaps_sent):
            return _postpone(entry.seq, entry.attempt, "in_doubt", 0.0, True, verdict.value)
        longest = min(self.settings.longest_ms, self.settings.first_ms * FACTOR ** min(entry.attempt - 1, 30))
        delay_ms = max(random.uniform(longest / 2, longest), retry_after_s * 1000)
        asyncio.get_running_loop().call_later(delay_ms / 1000, self.bell.set)
        return _postpone(entry.seq, entry.attempt, "queued", delay_ms, perhaps_sent, verdict.value)

    # ------------------------------------------------------------------------------------------------------ reconciling

    async def _ask(self, seq: int, attempt: int, order_id: uuid.UUID, absence_counts: bool) -> None:
        """Ask the engine what became of an order. What it does not know stays in doubt, and is asked again later."""
        try:
            async with self.http.get(self.settings.status_url.format(operation_id=order_id)) as response:
                answer, status = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError):
            return
        if status == 200:
            await self._change(_end(seq, attempt, "succeeded", answer))
        elif status == 404 and absence_counts:
            await self._change(_postpone(seq, attempt, "queued", 0.0, False, "absent"))
        self.bell.set()

    def _backoff(self) -> dict[str, int]:
        return {"first_ms": self.settings.first_ms, "longest_ms": self.settings.longest_ms}

    # --------------------------------------------------------------------------------------------------------- settling

    async def _change(self, statement: Statement) -> None:
        """Carry out a statement in the next transaction; returns once that is durable."""
        done = asyncio.get_running_loop().create_future()
        self._settled.append((statement, done))
        self._something.set()
        await done

    async def _settle(self) -> None:
        """Whatever is settled while one transaction is on its way shares the next one."""
        while True:
            await self._something.wait()
            batch, self._settled = self._settled[:SETTLED_AT_ONCE_MAX], self._settled[SETTLED_AT_ONCE_MAX:]
            if not self._settled:
                self._something.clear()
            # Everything leaves together and is one round trip, the COMMIT included.
            async with self.settling.pipeline(), self.settling.transaction():
                for (text, values), _ in batch:
                    await self.settling.execute(text, values)
            for _, done in batch:
                if not done.done():
                    done.set_result(None)


def _end(seq: int, attempt: int, ending: str, outcome: bytes | None) -> Statement:
    return outbox.END, {"seq": seq, "attempt": attempt, "ending": ending, "outcome": outcome}


def _postpone(seq: int, attempt: int, phase: str, delay_ms: float, perhaps_sent: bool, reason: str) -> Statement:
    told = {"phase": phase, "delay_ms": delay_ms, "perhaps_sent": perhaps_sent, "reason": reason}
    return outbox.POSTPONE, {"seq": seq, "attempt": attempt, **told}


def _seconds(retry_after: str) -> float:
    """A Retry-After in seconds; a date, or nonsense, is no reason to wait."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0


async def _connected(settings: Settings) -> None:
    async with (
        await psycopg.AsyncConnection.connect(settings.database, autocommit=True) as work,
        await psycopg.AsyncConnection.connect(settings.database, autocommit=True) as settling,
        await psycopg.AsyncConnection.connect(settings.database, autocommit=True) as listening,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=settings.timeout_ms / 1000)) as http,
    ):
        for connection in (work, settling):
            # Planned anew each time: a plan that was made while the outbox was empty reads all of a full one.
            connection.prepare_threshold = None
        async with work.transaction():
            await work.execute(outbox.SCHEMA)
        await Relay(settings, http, work, settling).run(listening)


async def main() -> None:
    """Relay until killed; a database that is away for a while is waited for."""
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    settings = Settings()
    while True:
        try:
            await _connected(settings)
        except* psycopg.OperationalError as errors:
            log.warning("the database does not answer: %s", errors.exceptions[0])
        await asyncio.sleep(RECONNECT_S)


if __name__ == "__main__":
    asyncio.run(main())
