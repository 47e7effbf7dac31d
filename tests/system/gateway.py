"""A small webhook gateway in front of a real server: reserve, call the exchange, commit, release or doubt.

It finds the key of a webhook as its case's ``profile`` says, and sends what is left of the payload along for the
fingerprint. Where the exchange did not say what became of an order, the gateway says so too, and a reconciler
settles it later.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qsl

from idemactor.core.fingerprint import canonical
from idemactor.errors import IdemactorError
from idemactor.wire.strict_json import parse
from tests.system.clients import Lost, Members, RpcError
from tests.system.exchange import Exchange, Result
from tests.system.process import Server

PAYLOADS: Final = Path(__file__).resolve().parents[1] / "cases" / "payloads"
PATIENCE_S: Final = 20.0
"""How long the gateway tries to reach a server that is away."""
RETRY_S: Final = 0.05
_TRY_AGAIN: Final = frozenset({"IDEMPOTENCY_UNAVAILABLE", "IDEMPOTENCY_OVERLOADED"})


class InvalidWebhook(Exception):
    """A webhook without what its key is made of."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook as it comes in."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: str

    def header(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found.lower() == name.lower()), None)

    def changed(self, change: Mapping[str, Any]) -> Webhook:
        """This one as a case's ``change`` makes it."""
        headers = {name.lower(): (name, value) for name, value in self.headers}
        for name, value in change.get("headers", {}).items():
            headers.pop(name.lower(), None)
            if value is not None:
                headers[name.lower()] = (name, value)
        return Webhook(change.get("path", self.path), tuple(headers.values()), change.get("body", self.body))


class Case:
    """One file of ``cases/payloads``."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        request = content["request"]
        self.id: str = content["id"]
        self.profile: Mapping[str, Any] = content["profile"]
        self.first = Webhook(request["path"], tuple(map(tuple, request["headers"])), request["body"])
        self.resends: list[Mapping[str, Any]] = content["resends"]
        self.near_misses: list[Mapping[str, Any]] = content["near_misses"]
        self.secrets = [secret["value"] for secret in content["secrets"] if "value" in secret]

    @property
    def namespace(self) -> str:
        return self.id

    def toml(self) -> str:
        """Its namespace: who may have been filled is never filled on a guess."""
        exclude = json.dumps(self.profile.get("exclude", []))
        return (
            f'[namespaces.{self.namespace}]\non_lease_expiry = "hold"\n'
            f"[namespaces.{self.namespace}.fingerprint]\nexclude = {exclude}\n"
        )

    # ---------------------------------------------------------------------------------------------------------- its key

    def key(self, webhook: Webhook) -> str:
        """Raises: InvalidWebhook."""
        rule = self.profile["key"]
        match rule["from"]:
            case "header" if "and" in rule:
                shop = rule["and"][0].removeprefix("header ")
                return _digest([_present(webhook.header(name)) for name in (rule["name"], shop)])
            case "header":
                return str(_present(webhook.header(rule["name"])))
            case "pointer":
                return str(_present(_at(_json(webhook), rule["pointer"])))
            case "fields":
                payload = _json(webhook)
                return _digest([self._mode(payload), *(_present(_at(payload, at)) for at in rule["pointers"])])
            case "form":
                form = dict(parse_qsl(webhook.body))
                return _digest([_present(form.get(name)) for name in rule["fields"]])
            case "body":
                return _digest(_json(webhook) if _is_json(webhook) else webhook.body)
            case other:
                raise AssertionError(f"no such rule: {other}")

    def _mode(self, payload: Any) -> str:
        mode = self.profile.get("mode")
        return "test" if mode and _at(payload, mode["pointer"]) is mode["test_when"] else "live"

    def stands_for(self, webhook: Webhook) -> dict[str, str]:
        """What the key stands for: ``payload_json`` or ``fingerprint``, and its value."""
        if _is_json(webhook):
            return {"payload_json": webhook.body}
        left_out = self.profile.get("exclude_fields", [])
        text = webhook.body
        if left_out:
            text = repr(sorted(pair for pair in parse_qsl(text) if pair[0] not in left_out))
        return {"fingerprint": hashlib.sha256(text.encode()).hexdigest()}


def cases() -> list[Case]:
    """All cases, in order."""
    return [Case(json.loads(path.read_text())) for path in sorted(PAYLOADS.glob("*.json"))]


def _is_json(webhook: Webhook) -> bool:
    return "json" in (webhook.header("Content-Type") or "")


def _json(webhook: Webhook) -> Any:
    try:
        return parse(webhook.body.encode())
    except IdemactorError as error:
        raise InvalidWebhook(str(error)) from error


def _at(payload: Any, pointer: str) -> Any:
    for name in pointer.split("/")[1:]:
        payload = payload.get(name) if isinstance(payload, dict) else None
    return payload


def _present(value: Any) -> Any:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InvalidWebhook("a field of the key is missing")
    return value


def _digest(fields: Any) -> str:
    return hashlib.sha256(canonical(fields)).hexdigest()


# ------------------------------------------------------------------------------------------------------------ gateway


class _Http(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


class Gateway:
    """Takes webhooks over HTTP and asks a server over both doors in turn.

    Attributes:
        before_commit: Called between the effect and its commit.
    """

    def __init__(self, server: Server, exchange: Exchange, seed: int = 0) -> None:
        self._server = server
        self._exchange = exchange
        self._cases = {case.first.path: case for case in cases()}
        self._random = random.Random(seed)
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self.before_commit: Callable[[], None] = lambda: None

    def __enter__(self) -> Gateway:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._http.server_address[1]}"

    def take(self, webhook: Webhook) -> tuple[int, Members]:
        """The status and the members that a webhook is answered with."""
        case = self._cases[webhook.path]
        try:
            key = case.key(webhook)
        except InvalidWebhook as error:
            return 400, {"error": str(error)}
        window = {"window_ms": case.profile["window_ms"]} if "window_ms" in case.profile else {}
        told = self._ask(
            "reserve", case.namespace, key=key, request_id=uuid.uuid4().hex, **window, **case.stands_for(webhook)
        )
        if told["result"] == "reserved":
            return self._place(case.namespace, key, told)
        return _STATUS[told["result"]], told

    def _place(self, namespace: str, key: str, granted: Members) -> tuple[int, Members]:
        held = {"key": key, "token": granted["token"]}
        result = self._exchange.place(f"{namespace} {key}", granted["operation_id"])
        self.before_commit()
        match result:
            case Result.FILLED:
                told = self._ask("commit", namespace, **held, outcome={"status": 200, "body": b"filled"})
            case Result.REJECTED:
                told = self._ask("release", namespace, **held, reason="the exchange did not take it")
            case Result.UNKNOWN:
                told = self._ask("doubt", namespace, **held, reason="the exchange did not say")
        return (200 if told["result"] == "committed" else 502), told

    def _ask(self, op: str, namespace: str, **members: Any) -> Members:
        """A command, again and again until it is answered: all of these may be repeated."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._ask_once(op, namespace, members)
            except (Lost, RpcError) as error:
                # The server is away, or starting; what became of the call is found out by asking again.
                if time.monotonic() > end or (isinstance(error, RpcError) and error.code not in _TRY_AGAIN):
                    raise
                time.sleep(RETRY_S)

    def _ask_once(self, op: str, namespace: str, members: Members) -> Members:
        if self._random.random() < 0.5:
            with self._server.rpc_client() as rpc:
                return rpc.call(op, namespace, **members)
        with self._server.http_client() as client:
            answer = client.send("POST", f"/v1/{namespace}/{op}", _http_body(members), _HTTP_HEADERS)
        if answer.code in _TRY_AGAIN:
            raise RpcError(f"{answer.code}: {answer.status}")
        assert "result" in answer.members, answer.members
        return answer.members

    # ------------------------------------------------------------------------------------------------------- reconciler

    def reconcile(self) -> int:
        """Ask the exchange about everything in doubt, and settle it; how many there were."""
        settled = 0
        for case in self._cases.values():
            with self._server.http_client() as client:
                page = client.get(f"/v1/{case.namespace}/records?state=in_doubt&limit=1000").members
                for record in page["records"]:
                    verdict = "committed" if self._exchange.was_filled(record["operation_id"]) else "released"
                    outcome = {"outcome": {"status": 200, "body": "filled"}} if verdict == "committed" else {}
                    told = client.call(
                        "resolve", case.namespace, key=record["key"], token=record["token"], verdict=verdict, **outcome
                    )
                    assert told.members["result"] == verdict
                    settled += 1
        return settled


_STATUS: Final = {"completed": 200, "in_flight": 409, "in_doubt": 409, "released": 409, "mismatch": 422}
_HTTP_HEADERS: Final = {"Content-Type": "application/json"}


def _http_body(members: Members) -> bytes:
    """As JSON; ``payload_json`` goes in as it is, so that no number is changed on the way."""
    plain = dict(members)
    payload = plain.pop("payload_json", None)
    if "outcome" in plain:
        plain["outcome"] = {**plain["outcome"], "body": plain["outcome"]["body"].decode()}
    text = json.dumps(plain)
    return (text if payload is None else f'{text[:-1]}, "payload": {payload}}}').encode()


def _handler(gateway: Gateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, members = gateway.take(Webhook(self.path, tuple(self.headers.items()), body))
            data = json.dumps(members, default=bytes.decode).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - The name is the base class's.
            """The test says what matters."""

    return Handler
