"""A webhook gateway: whatever is resent, clicked twice or interrupted, an order goes to the exchange at most once.

POST /webhook with an order as JSON: ``{"symbol": "BTCUSDT", "action": "LONG", "quantity": 0.001}``. README.md says
what comes back. Settings are environment variables, see ``Settings``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any, Final

import httpx
import hypercorn.trio
import trio
from hypercorn.config import Config
from quart import Response, request
from quart_trio import QuartTrio

from idemactor.client import (
    Client,
    CommitUnacknowledged,
    Hold,
    IdemactorClientError,
    InDoubtError,
    InFlightError,
    LeaseLost,
    MismatchError,
    Outcome,
    OutOfService,
    StaleTokenError,
    UnknownKeyError,
    binance_client_order_id,
)
from idemactor.core.fingerprint import Number, canonical
from idemactor.core.keys import check_key
from idemactor.errors import IdemactorError
from idemactor.wire.idempotency_key import parse_key_header
from idemactor.wire.strict_json import parse

NOT_PART_OF_THE_ORDER: Final = frozenset({"apiKey", "idempotencyKey"})
"""Members that may change from one sending to the next, and a secret that is to reach nothing."""

JSON: Final = [("content-type", "application/json")]

PATIENCE_MS: Final = 2_000
"""How long a sender waits while idemactor does not answer; it sends again, and many give up after three seconds."""

log = logging.getLogger("gateway")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the gateway is told; times in milliseconds."""

    bind: str = os.environ.get("GATEWAY_BIND", "127.0.0.1:9000")
    exchange: str = os.environ.get("EXCHANGE_URL", "http://127.0.0.1:9100")
    exchange_ms: int = int(os.environ.get("EXCHANGE_TIMEOUT_MS", "5000"))
    address: str = os.environ.get("IDEMACTOR_ADDRESS", "127.0.0.1:8788")
    token: str | None = os.environ.get("IDEMACTOR_TOKEN") or None
    # In "trade" an attempt whose gateway died stays in doubt until somebody has asked the exchange.
    namespace: str = os.environ.get("IDEMACTOR_NAMESPACE", "trade")
    lease_ms: int = int(os.environ.get("GATEWAY_LEASE_MS", "30000"))
    # A sender that names no key sends the same order again within this time, or means another one.
    window_ms: int = int(os.environ.get("GATEWAY_WINDOW_MS", "60000"))


class InvalidWebhook(Exception):
    """The sender has to change something."""


class NotExecuted(Exception):
    """The exchange surely did not take the order."""


class Unclear(Exception):
    """Nobody knows whether the exchange took the order."""


# ----------------------------------------------------------------------------------------- what the webhook stands for


@dataclass(frozen=True, slots=True)
class Webhook:
    """An order, its key, and a digest of all that it says.

    Attributes:
        derived: The key was made from the order's fields, since the sender named none.
    """

    order: dict[str, str]
    key: str
    derived: bool
    fingerprint: str


def read(body: bytes, key_headers: list[str]) -> Webhook:
    """The webhook that ``body`` is.

    Raises:
        InvalidWebhook: It is none.
    """
    try:
        return _read(body, key_headers)
    except IdemactorError as error:
        # No JSON, no key, or a number that no digest can be made of.
        raise InvalidWebhook(str(error)) from error


def _read(body: bytes, key_headers: list[str]) -> Webhook:
    told = parse(body)
    named = parse_key_header([value.encode("latin-1") for value in key_headers]) if key_headers else None
    if not isinstance(told, dict):
        raise InvalidWebhook("the webhook is no JSON object")
    order = {name: _text(told, name) for name in ("symbol", "action", "quantity")}
    if told.get("idempotencyKey") is not None:
        in_body = _text(told, "idempotencyKey")
        check_key(in_body)
        if named not in (None, in_body):
            raise InvalidWebhook("the key in the header and the key in the body differ")
        named = in_body
    derived = f"order:v1:{_digest([told.get('test') is True, told['symbol'], told['action'], told['quantity']])}"
    counted = {name: value for name, value in told.items() if name not in NOT_PART_OF_THE_ORDER}
    return Webhook(order, named or derived, named is None, f"order:v1:{_digest(counted)}")


def _text(told: dict[str, Any], name: str) -> str:
    """A member as text; numbers as they were written, since exchanges take decimals as text."""
    value = told.get(name)
    if isinstance(value, Number):
        return value.text
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise InvalidWebhook(f"{name} is missing")
    return str(value)


def _digest(value: object) -> str:
    """Injective over meaning: every part goes in with its length, and 0.001 is 1e-3."""
    return hashlib.sha256(canonical(value)).hexdigest()


# --------------------------------------------------------------------------------------------------------- the exchange


@dataclass(frozen=True, slots=True)
class Exchange:
    """The downstream, over HTTP."""

    http: httpx.AsyncClient

    async def place(self, order: dict[str, str], client_order_id: str) -> bytes:
        """What the exchange answered.

        Raises:
            NotExecuted: It surely did not happen.
            Unclear: It may have.
        """
        try:
            answer = await self.http.post("/orders", json={**order, "client_order_id": client_order_id})
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotExecuted("the exchange cannot be reached") from error
        except httpx.HTTPError as error:
            raise Unclear("the exchange did not say what became of the order") from error
        if answer.is_client_error:
            raise NotExecuted(f"the exchange refused the order with {answer.status_code}")
        try:
            success = answer.json()["success"] if answer.is_success else None
        except (ValueError, KeyError, TypeError):
            success = None
        if success is True:
            return answer.content
        # A "no" in a 200 is a no. Anything else is no answer to the question that matters.
        raise NotExecuted("the exchange refused the order") if success is False else Unclear("the exchange failed")

    async def find(self, client_order_id: str) -> bytes | None:
        """What became of an order by that id; None: the exchange knows of none.

        Raises:
            Unclear: It does not say.
        """
        try:
            answer = await self.http.get(f"/orders/{client_order_id}")
        except httpx.HTTPError as error:
            raise Unclear("the exchange does not say whether it has the order") from error
        if answer.status_code == 404:
            return None
        if not answer.is_success:
            raise Unclear("the exchange does not say whether it has the order")
        return answer.content


# ---------------------------------------------------------------------------------------------------------- the gateway


@dataclass(frozen=True, slots=True)
class Gateway:
    """Takes webhooks, asks idemactor, calls the exchange."""

    settings: Settings
    client: Client
    exchange: Exchange

    async def take(self, webhook: Webhook) -> Response:
        """What the sender is answered."""
        hold = self.client.hold(
            self.settings.namespace,
            webhook.key,
            fingerprint=webhook.fingerprint,
            lease_ms=self.settings.lease_ms,
            window_ms=self.settings.window_ms if webhook.derived else None,
            not_executed=NotExecuted,
        )
        try:
            async with hold:
                if not hold.completed:
                    hold.set_outcome(body=await self._order(hold, webhook.order), headers=JSON)
        except NotExecuted as error:
            return problem(502, "refused", f"{error}; nothing happened, it may be sent again")
        except Unclear as error:
            return in_doubt(str(error), hold.operation_id)
        except (CommitUnacknowledged, StaleTokenError, UnknownKeyError) as error:
            # The order is placed, and that is what its sender is told. After a lost answer the client goes on telling
            # the server, and until it has, repeats are in flight or in doubt.
            log.error("placed, but not recorded: %s: %s", hold.operation_id, error)
        except IdemactorClientError as error:
            return refusal(error)
        return replay(hold.outcome)

    async def _order(self, hold: Hold, order: dict[str, str]) -> bytes:
        client_order_id = binance_client_order_id(hold.operation_id)
        if hold.takeover:
            # An earlier attempt may have placed it. Only where the namespace says "retry" does one get here.
            found = await self.exchange.find(client_order_id)
            if found is not None:
                return found
            hold.rule_out_earlier()
        hold.begin_effect()
        return await self.exchange.place(order, client_order_id)


def problem(status: int, result: str, detail: str, *, retry_after_s: int | None = None, **more: str | None) -> Response:
    """An answer that is no success."""
    answer = Response(_json({"result": result, "detail": detail, **more}), status, content_type="application/json")
    if retry_after_s is not None:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer


def refusal(error: IdemactorClientError) -> Response:
    """What a sender is told who may not go on."""
    match error:
        case InFlightError():
            wait_s = min(5, -(-error.retry_after_ms // 1000))
            return problem(409, "in_flight", "the same order is on its way", retry_after_s=wait_s)
        case InDoubtError():
            return in_doubt("it is not known what became of an earlier attempt", error.operation_id)
        case LeaseLost(effect_begun=True):
            return in_doubt("the lease ran out while the order was on its way", error.operation_id)
        case MismatchError():
            return problem(422, "mismatch", "this key was used for another order")
        case OutOfService() | LeaseLost():
            return problem(503, "unavailable", "nobody can say whether this order is new", retry_after_s=1)
        case _:
            log.error("%s: %s", type(error).__name__, error)
            return problem(500, "failed", "the gateway is not set up well; nothing happened")


def in_doubt(why: str, operation_id: str | None) -> Response:
    """Nobody may go on; what there is to do stands in the answer."""
    detail = f"{why}; look for operation_id at the exchange, then `idemactor resolve`; sending it again does not help"
    return problem(409, "in_doubt", detail, operation_id=operation_id)


def replay(outcome: Outcome | None) -> Response:
    """The first outcome, to the first sender and to every other."""
    if outcome is None or outcome.omitted:
        return problem(200, "completed", "it was done; what the exchange answered was not kept")
    return Response(outcome.body, outcome.status, dict(outcome.headers))


def _json(members: dict[str, str | None]) -> str:
    return json.dumps({name: value for name, value in members.items() if value is not None})


def make_app(gateway: Gateway) -> QuartTrio:
    """The web application."""
    app = QuartTrio(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 64 * 1024

    @app.post("/webhook")
    async def webhook() -> Response:
        # A sender that hangs up cancels this task. What it sent is carried through all the same: every step has its
        # own deadline, and an order that was cut off half-way would be in doubt for nothing.
        body = await request.get_data(as_text=False)
        assert isinstance(body, bytes)
        try:
            told = read(body, request.headers.getlist("Idempotency-Key"))
        except InvalidWebhook as error:
            return problem(400, "invalid", str(error))
        with trio.CancelScope(shield=True):
            answer = await gateway.take(told)
        return answer  # noqa: RET504 - For all a type checker knows, a scope swallows what it cancels.

    return app


async def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    settings = Settings()
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    config = Config()
    config.bind = [settings.bind]
    http = httpx.AsyncClient(base_url=settings.exchange, timeout=settings.exchange_ms / 1000)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with Client(settings.address, token=settings.token, timeout_ms=PATIENCE_MS) as client, http:
            app = make_app(Gateway(settings, client, Exchange(http)))

            async def stopped() -> None:
                await anext(signals)

            await hypercorn.trio.serve(app, config, shutdown_trigger=stopped)


if __name__ == "__main__":
    trio.run(main)
