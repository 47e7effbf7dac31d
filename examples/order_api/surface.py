"""The order API as its callers see it, the same for both variants.

``POST /orders`` with an ``Idempotency-Key`` and ``{"account", "symbol", "side", "quantity"}`` -> 202 ``{"order_id",
"state"}`` once the order cannot be lost any more; however often it is sent, it is one order. ``GET /orders/ID`` -> 200
with the order, its state and, once there is one, the engine's answer as it came.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import hypercorn.trio
import trio
from hypercorn.config import Config
from quart import Response, request
from quart_trio import QuartTrio

KEY_CHARS_MAX: Final = 200
BODY_BYTES_MAX: Final = 16 * 1024
RETRY_AFTER_S: Final = 1


class InvalidOrder(Exception):
    """The caller has to change something."""


class Mismatch(Exception):
    """The key was used for another order."""


class Unavailable(Exception):
    """Nobody can say whether the order is new; nothing is known to have been accepted."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done. The quantity is text: a float is no way to write down money."""

    account: str
    symbol: str
    side: str
    quantity: str

    @property
    def body(self) -> bytes:
        """What the engine is sent; two orders are the same where their bodies are."""
        return json.dumps(asdict(self), sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class View:
    """An order as it stands.

    Attributes:
        state: queued, delivering, succeeded, failed, in_doubt or expired; "asked" where it was never accepted.
        outcome: The engine's answer, byte for byte.
    """

    order_id: str
    order: Order
    state: str
    operation_id: str | None
    outcome: bytes | None


class Orders(Protocol):
    """What the two variants do differently."""

    async def accept(self, key: str, order: Order) -> tuple[str, str]:
        """Make an order durable, with the intent to execute it: its id and its state.

        Raises:
            Mismatch: The key was used for another order.
            Unavailable: It may or may not have been accepted; sending it again is right.
        """

    async def find(self, order_id: str) -> View | None:
        """An order, if there is one. Raises: Unavailable."""


def read(body: bytes, keys: list[str]) -> tuple[str, Order]:
    """A request's key and order. Raises: InvalidOrder."""
    if len(keys) != 1 or not 0 < len(keys[0]) <= KEY_CHARS_MAX or not keys[0].isprintable():
        raise InvalidOrder(f"one Idempotency-Key of 1 to {KEY_CHARS_MAX} characters is needed")
    try:
        told = json.loads(body)
        return keys[0], Order(*(_text(told[name]) for name in ("account", "symbol", "side", "quantity")))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOrder(f"account, symbol, side and quantity are needed, as texts: {error}") from error


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{value!r} is no text")
    return value


def make_app(orders: Orders) -> QuartTrio:
    """The web application."""
    app = QuartTrio(__name__)
    app.config["MAX_CONTENT_LENGTH"] = BODY_BYTES_MAX

    @app.post("/orders")
    async def post() -> Response:
        data = await request.get_data(as_text=False)
        assert isinstance(data, bytes)
        try:
            key, order = read(data, request.headers.getlist("Idempotency-Key"))
            order_id, state = await orders.accept(key, order)
        except InvalidOrder as error:
            return _answer(400, {"detail": str(error)})
        except Mismatch:
            return _answer(422, {"detail": "this key was used for another order"})
        except Unavailable as error:
            return _unavailable(error)
        answer = _answer(202, {"order_id": order_id, "state": state})
        answer.headers["Location"] = f"/orders/{order_id}"
        return answer

    @app.get("/orders/<order_id>")
    async def get(order_id: str) -> Response:
        try:
            found = await orders.find(order_id)
        except Unavailable as error:
            return _unavailable(error)
        if found is None:
            return _answer(404, {"detail": "there is no such order"})
        shown = asdict(found) | {"outcome": None if found.outcome is None else found.outcome.decode(errors="replace")}
        return _answer(200, shown)

    return app


def _answer(status: int, members: dict[str, Any]) -> Response:
    return Response(json.dumps(members), status, content_type="application/json")


def _unavailable(error: Unavailable) -> Response:
    answer = _answer(503, {"detail": f"send it again: {error}"})
    answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    return answer


async def serve(open_orders: Callable[[], AbstractAsyncContextManager[Orders]]) -> None:
    """Serve at ``ORDER_API_BIND`` until SIGTERM or Ctrl-C."""
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    config = Config()
    config.bind = [os.environ.get("ORDER_API_BIND", "127.0.0.1:9001")]
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_orders() as orders:

            async def stopped() -> None:
                await anext(signals)

            await hypercorn.trio.serve(make_app(orders), config, shutdown_trigger=stopped)


@asynccontextmanager
async def background(work: Callable[[], Any]) -> AsyncIterator[None]:
    """A task beside the API that ends with it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
