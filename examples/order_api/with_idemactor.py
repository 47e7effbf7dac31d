"""The order API with claim, delivery and replay in idemactor; what is the business's own stays in PostgreSQL.

python -m examples.order_api.with_idemactor

The row of an order is written first, then its intent is dispatched. A crash between the two leaves a row that was only
asked for: the engine hears nothing of it, and the caller, who has had no answer, sends it again. There is no relay, no
reconciler, no retry and no state machine here: this program asks what became of an order, and notes it down.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from examples.order_api.database import Connection, Database
from examples.order_api.surface import Mismatch, Order, Orders, Unavailable, View, background, serve
from idemactor.client import Client, Dispatched, IdemactorClientError, MismatchError, UnknownKeyError

NAMESPACE: Final = "orders"
PATIENCE_MS: Final = 3_000
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


@contextmanager
def asking() -> Iterator[None]:
    """What idemactor says no to, and what it does not say, in the words of the API."""
    try:
        yield
    except MismatchError as error:
        raise Mismatch from error
    except IdemactorClientError as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class DispatchedOrders:
    """Rows in PostgreSQL, operations in idemactor."""

    database: Database
    client: Client

    async def accept(self, key: str, order: Order) -> tuple[str, str]:
        """See ``Orders``."""
        order_id, ending = await self.database.run(partial(_ask, key=key, order=order))
        if ending is not None:
            # Answered from the row for as long as there is one, also when idemactor has long forgotten the key.
            return order_id, ending
        with asking():
            dispatched = await self.client.dispatch(
                NAMESPACE, key, order.body, content_type="application/json", order_key=order.account
            )
        if not isinstance(dispatched, Dispatched):
            raise Mismatch("somebody used this key for a reserve")
        noted = dispatched.operation_id, order_id
        await self.database.run(lambda connection: connection.execute(ACCEPTED, noted))
        return order_id, dispatched.state

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
        with asking():
            try:
                operation_id = operation_id or (await self.client.get(NAMESPACE, key)).operation_id
            except UnknownKeyError:
                return "asked", None
            found = await self.client.operation(NAMESPACE, operation_id)
        state, outcome = str(found.state), found.outcome.body if found.outcome is not None else None

        def note(connection: Connection) -> None:
            connection.execute(ACCEPTED, (operation_id, order_id))
            if state in ENDED:
                connection.execute(END, (state, outcome, order_id))

        await self.database.run(note)
        return state, outcome

    async def keep_books(self) -> None:
        """Follow every order that has not ended, those included whose caller never came back."""
        while True:
            # What is down now is asked again in a moment; no order depends on it.
            with suppress(Unavailable):
                for order_id, key, operation_id in await self.database.run(
                    lambda connection: connection.execute(OPEN, (FOLLOWED_AT_ONCE,)).fetchall()
                ):
                    with suppress(Unavailable):
                        await self.follow(str(order_id), key, operation_id)
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
    """The orders of ``DATABASE`` and of the idemactor at ``IDEMACTOR_ADDRESS``."""
    database = Database(os.environ["DATABASE"])
    await database.run(lambda connection: connection.execute(SCHEMA))
    async with Client(os.environ["IDEMACTOR_ADDRESS"], timeout_ms=PATIENCE_MS) as client:
        orders = DispatchedOrders(database, client)
        async with background(orders.keep_books):
            yield orders


if __name__ == "__main__":
    trio.run(serve, open_orders)
