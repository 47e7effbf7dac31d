"""Durable dispatch: what is accepted, what is delivered, and how long that takes; beside an outbox in PostgreSQL."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from bench.fill import INTENT, Filling
from bench.fill import fill as fill_files
from bench.harness import Result, Rounds, Sample, Section, Subject, latencies_ms, run
from bench.load.dispatching import Dispatched, Dispatching, carry_out
from bench.load.sink import Sink, sink
from bench.peers.postgres import Postgres
from bench.plan import SHARDS, Bench
from bench.processes import BenchError, running
from bench.server import CONCURRENCY, serving

Filled = Literal["idle", "full"]
_OUTBOXES: Final[tuple[Filled, ...]] = ("idle", "full")

REPETITIONS_MAX: Final = 3
"""Every repetition of a delivery is filled first, which takes longer than to measure it."""
PER_S: Final = 4_000
"""So many entries for each second that a delivery is to take."""
CALLS_A_SECOND: Final = 100
"""What latencies are measured at: nothing is in anybody's way."""
FILLERS: Final = 512
FAR_MS: Final = 86_400_000
"""Entries that fill an outbox are due tomorrow."""
ACCOUNTS: Final = 100
"""Where entries have to be delivered in order: as many lines, more than deliveries at once."""
MARGIN_S: Final = 0.3


@dataclass(slots=True)
class Outbox:
    """One that is measured.

    Attributes:
        pushed: How to dispatch what is delivered to the sink.
        held: How to dispatch what nobody delivers.
        fill: Puts so many entries into it at once, due at so many milliseconds since the epoch, of so many accounts.
        filled_per_s: How fast that was the last time.
    """

    name: str
    sink: Sink
    pushed: Dispatching
    held: Dispatching
    fill: Callable[[int, int, int], None]
    filled_per_s: float = 4_000.0

    def accepted(self, seconds: float) -> Sample:
        """Calls a second, each answered once it is durable, while nothing is delivered."""
        return carry_out(replace(self.held, seconds=seconds)).sample()

    def delivered(self, seconds: float, accounts: int = 0) -> Sample:
        """Deliveries a second, of entries that all come due at the same moment, from the first to the last."""
        count = max(2, int(seconds * PER_S))
        self.sink.skip()
        while not self._filled_in_time(count, accounts):
            # The first ones were under way before the last was there.
            self.sink.wait(count)
            self.filled_per_s /= 2
        arrived = self.sink.wait(count).values()
        return {"ops_per_s": (count - 1) / (max(arrived) - min(arrived))}

    def in_order(self, seconds: float) -> Sample:
        """The same, where an account's entries have to be delivered one after the other."""
        return self.delivered(seconds, ACCOUNTS)

    def latency(self, seconds: float) -> Sample:
        """From the beginning of a call to the arrival of its delivery: longer than from the acceptance on."""
        self.sink.skip()
        dispatched = carry_out(replace(self.pushed, rate=CALLS_A_SECOND, seconds=max(1.0, seconds)))
        return latencies_ms(self._latencies_s(dispatched))

    def _filled_in_time(self, count: int, accounts: int) -> bool:
        began = time.time()
        due_s = began + MARGIN_S + count / self.filled_per_s * 1.2
        self.fill(count, int(due_s * 1000), accounts)
        self.filled_per_s = count / (time.time() - began)
        return time.time() < due_s

    def _latencies_s(self, dispatched: Dispatched) -> list[float]:
        arrived = self.sink.wait(len(dispatched.began))
        try:
            return [arrived[operation_id] - at for operation_id, at in dispatched.began.items()]
        except KeyError as error:
            raise BenchError(f"{error} was never delivered") from error


def measure(bench: Bench) -> Section:
    """Each outbox empty and full: accepted, delivered, and how long a delivery takes."""
    plan = bench.plan
    rounds = replace(plan.rounds, repetitions=1 if plan.brief else min(REPETITIONS_MAX, plan.rounds.repetitions))
    with ExitStack() as stack:
        outboxes = [stack.enter_context(_of_idemactor(bench, filled)) for filled in _OUTBOXES]
        if bench.postgres:
            outboxes += [stack.enter_context(_of_postgres(bench, bench.postgres, filled)) for filled in _OUTBOXES]
        section = Section("outbox", "Durable dispatch", _measured(outboxes, rounds))
    section.notes.append(
        "32 calls under way by a Python program, on asyncio: on one connection, or with PostgreSQL on as many."
        f" {CONCURRENCY} deliveries at once, over HTTP to a destination that answers at once. A full outbox has"
        f" {plan.waiting:,} entries more, due tomorrow. Latencies of deliveries are at {CALLS_A_SECOND} calls a second,"
        " from the beginning of the call to the arrival. PostgreSQL: `examples/order_api`, its tables, its statements"
        " and its relay."
    )
    return section


def _measured(outboxes: list[Outbox], rounds: Rounds) -> list[Result]:
    says: dict[str, tuple[str, Callable[[Outbox, float], Sample]]] = {
        "accepted": ("accepted", Outbox.accepted),
        "delivered": ("delivered", Outbox.delivered),
        "ordered": (f"delivered in order for each of {ACCOUNTS} accounts", Outbox.in_order),
        "latency": ("call to delivery", Outbox.latency),
    }
    subjects = []
    for short, (what, by) in says.items():
        for outbox in outboxes:
            filled, client = outbox.name.split("/")
            who = "idemactor" if client == "idemactor" else "PostgreSQL with LISTEN/NOTIFY"
            name = f"{who}, {what}, outbox {'empty' if filled == 'idle' else 'full'}"
            subjects.append(Subject(f"outbox/{filled}/{short}/{client}", name, partial(by, outbox)))
    return run(subjects, rounds)


@contextmanager
def _of_idemactor(bench: Bench, filled: Filled) -> Iterator[Outbox]:
    folder, waiting = bench.scratch / f"outbox-{filled}", bench.plan.waiting
    if filled == "full":
        until = _tomorrow() + FAR_MS
        fill_files(Filling(str(folder), waiting, SHARDS, (), _tomorrow() - FAR_MS, until, 0, due_at=_tomorrow()))
    with (
        sink(bench.scratch / f"sink-{filled}") as destination,
        serving(folder, shards=SHARDS, destination=destination.address) as server,
    ):
        pushed = Dispatching("idemactor", server.rpc)

        def fill(count: int, due_at: int, accounts: int) -> None:
            carry_out(replace(pushed, tasks=FILLERS, count=count, due_at=due_at, accounts=accounts))

        yield Outbox(f"{filled}/idemactor", destination, pushed, replace(pushed, namespace="held"), fill)


@contextmanager
def _of_postgres(bench: Bench, server: Postgres, filled: Filled) -> Iterator[Outbox]:
    waiting = bench.plan.waiting if filled == "full" else 0
    with (
        sink(bench.scratch / f"sink-postgres-{filled}") as destination,
        _database(server, f"held_{filled}", waiting) as held,
        _database(server, f"pushed_{filled}", waiting) as pushed,
        _relay(bench.scratch / f"relay-{filled}.log", pushed, destination),
    ):
        calls = Dispatching("postgres", pushed)
        yield Outbox(f"{filled}/postgres", destination, calls, replace(calls, address=held), partial(_fill, pushed))


def _tomorrow() -> int:
    return int(time.time() * 1000) + FAR_MS


@contextmanager
def _database(server: Postgres, name: str, waiting: int) -> Iterator[str]:
    """A database with the example's tables, and so many entries that are due tomorrow."""
    import psycopg

    from examples.order_api.outbox import SCHEMA

    conninfo = server.conninfo.replace("dbname=postgres", f"dbname={name}")
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(conninfo, autocommit=True) as inside:
            inside.execute(SCHEMA)
            _fill(conninfo, waiting, _tomorrow(), 0)
            inside.execute("VACUUM ANALYZE orders, outbox")
        connection.execute("CHECKPOINT")
        yield conninfo
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


_FILL: Final = """
WITH made AS (
    INSERT INTO orders (id, key, account, body)
    SELECT gen_random_uuid(), name,
        CASE %(accounts)s WHEN 0 THEN name ELSE 'account-' || number %% greatest(%(accounts)s, 1) END,
        %(body)s
    FROM (SELECT %(prefix)s || '-' || number, number FROM generate_series(1, %(count)s) AS number) AS n (name, number)
    RETURNING id, account)
INSERT INTO outbox (order_id, account, due_at, deliver_until)
SELECT id, account, to_timestamp(%(due_at)s / 1000.0), now() + interval '7 days' FROM made
"""


def _fill(conninfo: str, count: int, due_at: int, accounts: int) -> None:
    """As many orders as that, in one transaction."""
    import psycopg

    with psycopg.connect(conninfo) as connection:
        told = {"body": INTENT, "prefix": os.urandom(8).hex(), "count": count, "due_at": due_at, "accounts": accounts}
        connection.execute(_FILL, told)


@contextmanager
def _relay(log: Path, conninfo: str, destination: Sink) -> Iterator[None]:
    """The example's relay, once it has delivered something."""
    told = {
        "DATABASE": conninfo,
        "ENGINE_URL": f"http://{destination.address}/orders",
        "ENGINE_RECOGNISES": "1",
        "CONCURRENCY": str(CONCURRENCY),
    }
    with running([sys.executable, "-m", "examples.order_api.relay"], log=log, environment=told):
        carry_out(Dispatching("postgres", conninfo, tasks=1, count=1))
        destination.wait(1)
        yield
