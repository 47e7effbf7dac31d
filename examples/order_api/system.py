"""The whole system of one variant: PostgreSQL's database, the engine, and the processes that may be killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import httpx

from examples.order_api.engine import Mode
from examples.order_api.postgres import Postgres
from examples.order_api.processes import Program, free_port

Variant = Literal["with_idemactor", "postgres_alone"]
VARIANTS: Final[tuple[Variant, ...]] = get_args(Variant)

Kind = Literal["recognises", "status", "neither"]
"""What the engine can do: recognise an operation's id, say what became of one, or nothing of the kind."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

ENDED: Final = frozenset({"succeeded", "failed", "expired"})
TIMEOUT_MS: Final = 400
LEASE_MS: Final = 800
ABSENCE_AFTER_MS: Final = 1_500
"""The engine executes what arrives at once: what it has not heard of so long after an attempt, it never will."""
RETRY_FIRST_MS: Final = 50
RETRY_LONGEST_MS: Final = 600
SCAN_MS: Final = 200
PATIENCE_S: Final = 5.0
AGAIN_S: Final = 20.0

DISPATCH: Final = """
[namespaces.orders]
# An API that was away for a week still finds out what became of its orders.
ttl_ms = 604800000
[namespaces.orders.dispatch]
url = "{engine}/orders"
timeout_ms = {timeout_ms}
concurrency = 8
downstream_dedups = {recognises}
{status}
retry = {{ first_ms = {first_ms}, factor = 2.0, longest_ms = {longest_ms}, horizon_ms = 86400000 }}
success = {{ pointer = "/success", equals = true }}
definite_failure = [400, 401, 403, 404, 422]
not_executed = [429, 503]
on_failure = "failed"
"""
STATUS: Final = """
status_url = "{engine}/orders/{{operation_id}}"
status_released = [404]
status_after_ms = {absence_after_ms}
"""

NEXT_TRY: Final = """
SELECT 1000 * extract(epoch FROM due_at - now()), attempt FROM outbox WHERE phase = 'queued' AND order_id = %s
"""


@dataclass(slots=True)
class System:
    """Everything, up and running.

    Attributes:
        api: The order API.
        deliverer: Who delivers: idemactor, or the relay.
    """

    variant: Variant
    kind: Kind
    postgres: Postgres
    database: str
    engine: Program
    api: Program
    deliverer: Program
    # Nobody who is killed leaves a connection behind that somebody would use again.
    http: httpx.Client = field(default_factory=lambda: httpx.Client(limits=httpx.Limits(max_keepalive_connections=0)))

    @property
    def url(self) -> str:
        """Of the order API."""
        return f"http://127.0.0.1:{self.api.port}"

    def post(self, key: str, order: dict[str, str], timeout_s: float = PATIENCE_S) -> httpx.Response:
        """Send an order. Raises: httpx.HTTPError."""
        return self.http.post(f"{self.url}/orders", json=order, headers={"Idempotency-Key": key}, timeout=timeout_s)

    def accepted(self, key: str, order: dict[str, str]) -> dict[str, Any]:
        """Send an order that is to be accepted; the answer's members."""
        answer = self.post(key, order)
        assert answer.status_code == 202, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def look(self, order_id: str) -> dict[str, Any]:
        """An order as the API shows it."""
        end = time.monotonic() + AGAIN_S
        while (answer := self.http.get(f"{self.url}/orders/{order_id}", timeout=PATIENCE_S)).status_code == 503:
            # As it asks its callers to: somebody is being started again.
            assert time.monotonic() < end, answer.text
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def switch(self, mode: Mode) -> None:
        """Let the engine behave otherwise."""
        self.http.post(f"http://127.0.0.1:{self.engine.port}/switch", json={"mode": mode}).raise_for_status()

    def executions(self) -> list[dict[str, Any]]:
        """What the engine executed, in order."""
        found: list[dict[str, Any]] = self.http.get(f"http://127.0.0.1:{self.engine.port}/executions").json()
        return found

    def executed(self, symbol: str) -> int:
        """How often an order was executed; each has a symbol of its own here."""
        return sum(done["symbol"] == symbol for done in self.executions())

    def answer_of(self, operation_id: str) -> bytes:
        """What the engine says of an operation that it executed."""
        return self.http.get(f"http://127.0.0.1:{self.engine.port}/orders/{operation_id}").raise_for_status().content

    def next_try(self, order_id: str) -> tuple[float, int]:
        """In how many milliseconds an accepted order is tried again, minus infinity where somebody does; and how often
        it was tried so far."""
        if self.variant == "postgres_alone":
            found = self.sql(NEXT_TRY, order_id)
            return (float(found[0][0]), found[0][1]) if found else (float("-inf"), 0)
        operation_id = self.look(order_id)["operation_id"]
        answer = self.http.get(f"http://127.0.0.1:{self.deliverer.port}/v1/orders/operations/{operation_id}")
        operation = answer.raise_for_status().json()["operation"]
        at = operation["next_attempt_at"]
        return float("-inf") if at is None else at - time.time() * 1000, operation["attempt"]

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask this system's database."""
        with self.postgres.connect(self.database) as connection:
            found: list[tuple[Any, ...]] = connection.execute(statement, values).fetchall()
            return found

    def programs(self) -> tuple[Program, ...]:
        """All, in the order in which they are started."""
        return self.engine, self.deliverer, self.api

    def start(self) -> None:
        """Start what does not run."""
        for program in self.programs():
            program.start()

    def kill(self) -> None:
        """Kill everything but PostgreSQL."""
        for program in reversed(self.programs()):
            program.kill()


@contextmanager
def system(variant: Variant, kind: Kind, postgres: Postgres, folder: Path) -> Iterator[System]:
    """A system with a database and an engine of its own, in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    engine, api = _engine(kind, folder), free_port()
    database = postgres.create()
    told = {"DATABASE": postgres.conninfo(database), "ORDER_API_BIND": f"127.0.0.1:{api}"}
    if variant == "with_idemactor":
        told["IDEMACTOR_ADDRESS"] = f"127.0.0.1:{free_port()}"
        deliverer = _idemactor(kind, engine.port, folder, told["IDEMACTOR_ADDRESS"])
    else:
        deliverer = _relay(kind, engine.port, folder, told["DATABASE"])
    program = Program([f"examples.order_api.{variant}"], folder / "api.log", api, told)
    running = System(variant, kind, postgres, database, engine, program, deliverer)
    try:
        running.start()
        yield running
    finally:
        running.kill()


def _engine(kind: Kind, folder: Path) -> Program:
    port = free_port()
    arguments = ["examples.order_api.engine", "--port", str(port), "--journal", str(folder / "executions.jsonl")]
    return Program(arguments + ["--recognises"] * (kind == "recognises"), folder / "engine.log", port)


def _idemactor(kind: Kind, engine: int, folder: Path, rpc: str) -> Program:
    port, config = free_port(), folder / "idemactor.toml"
    url = f"http://127.0.0.1:{engine}"
    settings = DISPATCH.format(
        engine=url,
        timeout_ms=TIMEOUT_MS,
        recognises=json.dumps(kind == "recognises"),
        status=STATUS.format(engine=url, absence_after_ms=ABSENCE_AFTER_MS) if kind == "status" else "",
        first_ms=RETRY_FIRST_MS,
        longest_ms=RETRY_LONGEST_MS,
    )
    config.write_text(settings)
    arguments = ["idemactor", "serve", "--config", str(config), "--data-dir", str(folder / "data")]
    arguments += ["--http", f"127.0.0.1:{port}", "--rpc", rpc]
    return Program(arguments, folder / "idemactor.log", port)


def _relay(kind: Kind, engine: int, folder: Path, database: str) -> Program:
    url = f"http://127.0.0.1:{engine}/orders"
    told = {
        "DATABASE": database,
        "ENGINE_URL": url,
        "ENGINE_RECOGNISES": "1" if kind == "recognises" else "",
        "ENGINE_STATUS_URL": f"{url}/{{operation_id}}" if kind == "status" else "",
        "ENGINE_ABSENCE_AFTER_MS": str(ABSENCE_AFTER_MS),
        "ENGINE_TIMEOUT_MS": str(TIMEOUT_MS),
        "LEASE_MS": str(LEASE_MS),
        "RETRY_FIRST_MS": str(RETRY_FIRST_MS),
        "RETRY_LONGEST_MS": str(RETRY_LONGEST_MS),
        "SCAN_MS": str(SCAN_MS),
    }
    return Program(["examples.order_api.relay"], folder / "relay.log", 0, told)
