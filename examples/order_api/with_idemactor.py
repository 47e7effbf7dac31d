"""The order API with claim, delivery and replay in idemactor; what is the business's own stays in PostgreSQL.

python -m examples.order_api.with_idemactor

The row of an order is written first, then its intent is dispatched. A crash between the two leaves a row that was only
asked for: the engine hears nothing of it, and the caller, who has had no answer, sends it again. There is no relay, no
reconciler, no retry and no state machine here: this program asks what became of an order, and notes it down.
"""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
import trio

from examples.order_api.database import Connection, Database
from examples.order_api.surface import Mismatch, Order, Orders, Unavailable, View, background, serve

NAMESPACE: Final = "orders"
PATIENCE_S: Final = 5.0
FOLLOW_S: Final = 0.5
FOLLOWED_AT_ONCE: Final = 100
ENDED: Final = frozenset({"succeeded", "failed", "expired"})

SCHEMA: Final = """
SELECT pg_advisory_xact_lock(0);
CREATE TABLE IF NOT EXISTS orders (
    id uuid PRIMARY KEY,
    key text NOT NULL UNIQUE,
    account text NOT NULL,
    body bytea NOT NULL,
    operation_id text UNIQUE,
    ending text,
    outcome bytea,
    asked_at timestamptz NOT NULL DEFAULT now(),
    looked_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz
);
CREATE INDEX IF NOT EXISTS orders_open ON orders (looked_at) WHERE ending IS NULL;
"""
ASK: Final = "INSERT INTO orders (id, key, account, body) VALUES (%s, %s, %s, %s) ON CONFLICT (key) DO NOTHING"
ASKED: Final = "SELECT id, body, ending FROM orders WHERE key = %s"
ACCEPTED: Final = "UPDATE orders SET operation_id = %s WHERE id = %s AND operation_id IS NULL"
FIND: Final = "SELECT key, body, operation_id, ending, outcome FROM orders WHERE id = %s"
OPEN: Final = """
UPDATE orders SET looked_at = now() WHERE id IN (
    SELECT id FROM orders WHERE ending IS NULL ORDER BY looked_at LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING id, key, operation_id
"""
END: Final = "UPDATE orders SET ending = %s, outcome = %s, ended_at = now() WHERE id = %s AND ending IS NULL"


@dataclass(frozen=True, slots=True)
class Idemactor:
    """The three calls that this program makes."""

    http: httpx.AsyncClient

    async def dispatch(self, key: str, order: Order) -> tuple[str, str]:
        """Make the intent durable: the operation's id and its state. Raises: Mismatch, Unavailable."""
        intent = {"content_type": "application/json", "body": order.body.decode()}
        told = {"key": key, "intent": intent, "order_key": order.account}
        status, body = await self._ask("POST", "dispatch", told)
        if status == 422:
            raise Mismatch
        if status != 202:
            raise Unavailable(f"idemactor answered {status}: {body.get('code')}")
        return body["operation_id"], body["state"]

    async def operation(self, operation_id: str) -> tuple[str, bytes | None]:
        """How an operation stands, and the engine's answer. Raises: Unavailable."""
        status, body = await self._ask("GET", f"operations/{operation_id}")
        if status != 200:
            raise Unavailable(f"idemactor answered {status}: {body.get('code')}")
        operation = body["operation"]
        return operation["state"], _body_of(operation["outcome"])

    async def operation_of(self, key: str) -> str | None:
        """The id of the operation that was accepted under a key, if one was. Raises: Unavailable."""
        status, body = await self._ask("POST", "get", {"key": key})
        if status not in (200, 404):
            raise Unavailable(f"idemactor answered {status}: {body.get('code')}")
        found: str | None = body["record"]["operation_id"] if status == 200 else None
        return found

    async def _ask(self, method: str, what: str, told: object = None) -> tuple[int, dict[str, Any]]:
        try:
            answer = await self.http.request(method, f"/v1/{NAMESPACE}/{what}", json=told)
            return answer.status_code, answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(f"idemactor does not answer: {error}") from error


def _body_of(outcome: dict[str, Any] | None) -> bytes | None:
    if outcome is None:
        return None
    # Bytes that are no text come in base64.
    return base64.b64decode(outcome["body_b64"]) if "body_b64" in outcome else str(outcome["body"]).encode()


@dataclass(frozen=True, slots=True)
class DispatchedOrders:
    """Rows in PostgreSQL, operations in idemactor."""

    database: Database
    idemactor: Idemactor

    async def accept(self, key: str, order: Order) -> tuple[str, str]:
        """See ``Orders``."""
        order_id, ending = await self.database.run(partial(_ask, key=key, order=order))
        if ending is not None:
            # Answered from the row for as long as there is one, also when idemactor has long forgotten the key.
            return order_id, ending
        operation_id, state = await self.idemactor.dispatch(key, order)
        await self.database.run(lambda connection: connection.execute(ACCEPTED, (operation_id, order_id)))
        return order_id, state

    async def find(self, order_id: str) -> View | None:
        """See ``Orders``."""
        try:
            wanted = uuid.UUID(order_id)
        except ValueError:
            return None
        row = await self.database.run(lambda connection: connection.execute(FIND, (wanted,)).fetchone())
        if row is None:
            return None
        key, body, operation_id, state, outcome = row
        if state is None:
            state, outcome = await self.follow(order_id, key, operation_id)
        return View(order_id, Order(**json.loads(body)), state, operation_id, outcome)

    async def follow(self, order_id: str, key: str, operation_id: str | None) -> tuple[str, bytes | None]:
        """Ask what became of an order, and note it down where it has ended."""
        operation_id = operation_id or await self.idemactor.operation_of(key)
        if operation_id is None:
            return "asked", None
        state, outcome = await self.idemactor.operation(operation_id)

        def note(connection: Connection) -> None:
            connection.execute(ACCEPTED, (operation_id, order_id))
            if state in ENDED:
                connection.execute(END, (state, outcome, order_id))

        await self.database.run(note)
        return state, outcome

    async def keep_books(self) -> None:
        """Follow every order that has not ended, those included whose caller never came back."""
        while True:
            try:
                for order_id, key, operation_id in await self.database.run(
                    lambda connection: connection.execute(OPEN, (FOLLOWED_AT_ONCE,)).fetchall()
                ):
                    await self.follow(str(order_id), key, operation_id)
            except Unavailable:
                pass  # What is down now is asked again in a moment; no order depends on it.
            await trio.sleep(FOLLOW_S)


def _ask(connection: Connection, key: str, order: Order) -> tuple[str, str | None]:
    with connection.pipeline():
        connection.execute(ASK, (uuid.uuid4(), key, order.account, order.body))
        found = connection.execute(ASKED, (key,))
    order_id, body, ending = found.fetchone()
    if body != order.body:
        raise Mismatch
    return str(order_id), ending


@asynccontextmanager
async def open_orders() -> AsyncIterator[Orders]:
    """The orders of ``DATABASE`` and of the idemactor at ``IDEMACTOR_URL``."""
    database = Database(os.environ["DATABASE"])
    await database.run(lambda connection: connection.execute(SCHEMA))
    async with httpx.AsyncClient(base_url=os.environ["IDEMACTOR_URL"], timeout=PATIENCE_S) as http:
        orders = DispatchedOrders(database, Idemactor(http))
        async with background(orders.keep_books):
            yield orders


if __name__ == "__main__":
    trio.run(serve, open_orders)
