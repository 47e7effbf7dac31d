"""The order API with its claim in PostgreSQL alone. ``relay.py`` is its other half and must run beside it.

python -m examples.order_api.postgres_alone
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from examples.order_api import outbox
from examples.order_api.database import Connection, Database
from examples.order_api.surface import Mismatch, Order, Orders, View, serve

HORIZON_MS = int(os.environ.get("HORIZON_MS", "86400000"))
"""How long an order is tried at most."""


@dataclass(frozen=True, slots=True)
class PostgresOrders:
    """Orders, claims and intents in one database, and so in one transaction."""

    database: Database

    async def accept(self, key: str, order: Order) -> tuple[str, str]:
        """See ``Orders``."""
        return await self.database.run(lambda connection: _accept(connection, key, order))

    async def find(self, order_id: str) -> View | None:
        """See ``Orders``."""
        try:
            wanted = uuid.UUID(order_id)
        except ValueError:
            return None
        row = await self.database.run(lambda connection: connection.execute(outbox.FIND, (wanted,)).fetchone())
        if row is None:
            return None
        body, state, outcome = row
        return View(order_id, Order(**json.loads(body)), state, order_id, outcome)


def _accept(connection: Connection, key: str, order: Order) -> tuple[str, str]:
    order_id = uuid.uuid4()
    told = accepting(order_id, key, order.account, order.body)
    # Both statements leave together and cost one round trip.
    with connection.pipeline():
        connection.execute(outbox.LANE, (order.account,))
        new = connection.execute(outbox.ACCEPT, told)
    if new.fetchone() is not None:
        return str(order_id), "queued"
    first_id, body, state = connection.execute(outbox.FIND_BY_KEY, (key,)).fetchone()
    if body != order.body:
        raise Mismatch
    return str(first_id), state


def accepting(order_id: uuid.UUID, key: str, account: str, body: bytes, due_at: object = None) -> dict[str, Any]:
    """What ``outbox.ACCEPT`` asks for."""
    return {
        "id": order_id,
        "key": key,
        "account": account,
        "body": body,
        "due_at": due_at,
        "horizon_ms": HORIZON_MS,
    }


@asynccontextmanager
async def open_orders() -> AsyncIterator[Orders]:
    """The orders of ``DATABASE``, with tables where there are none yet."""
    database = Database(os.environ["DATABASE"])
    await database.run(lambda connection: connection.execute(outbox.SCHEMA))
    yield PostgresOrders(database)


if __name__ == "__main__":
    trio.run(serve, open_orders)
