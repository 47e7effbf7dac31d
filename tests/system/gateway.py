"""A small webhook gateway in front of a real server: reserve, call the exchange, commit, release or doubt.

It hands each webhook on as it came, with the name of its source. Where the exchange did not say what became of an
order, the gateway says so too, and a reconciler settles it later.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from idemactor.gateway.request import RawRequest
from tests.gateway.payloads import OWN_TOML, Payload, payloads, request_members
from tests.system.clients import Lost, Members, RpcError
from tests.system.exchange import Exchange, Result
from tests.system.process import Server

PATIENCE_S: Final = 20.0
"""How long the gateway tries to reach a server that is away."""
RETRY_S: Final = 0.05
_TRY_AGAIN: Final = frozenset({"IDEMPOTENCY_UNAVAILABLE", "IDEMPOTENCY_OVERLOADED"})


class InvalidWebhook(Exception):
    """A webhook in which its source finds no key."""


@dataclass(frozen=True, slots=True)
class Case:
    """One file of ``cases/payloads``, with a namespace of its own."""

    payload: Payload

    @property
    def id(self) -> str:
        return self.payload.id

    @property
    def namespace(self) -> str:
        return self.payload.id

    @property
    def first(self) -> RawRequest:
        return self.payload.first

    def toml(self) -> str:
        """Its namespace: what may have been filled is never filled on a guess."""
        return f'[namespaces.{self.namespace}]\non_lease_expiry = "hold"\n'


def cases() -> list[Case]:
    """All cases, in order."""
    return [Case(payload) for payload in payloads()]


def configuration() -> str:
    """Of a server that takes the webhooks of all cases."""
    namespaces = "".join(case.toml() for case in cases())
    return f"[namespaces.default]\n{namespaces}{OWN_TOML.read_text()}"


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

    def take(self, webhook: RawRequest) -> tuple[int, Members]:
        """The status and the members that a webhook is answered with."""
        case = self._cases[webhook.path]
        source = case.payload.source.name
        try:
            told = self._ask("reserve", case.namespace, request_id=uuid.uuid4().hex, source=source, request=webhook)
        except InvalidWebhook as error:
            return 400, {"error": str(error)}
        if told["result"] == "reserved":
            return self._place(case.namespace, told["key"], told)
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
                if isinstance(error, RpcError) and error.code == "IDEMPOTENCY_INVALID_REQUEST":
                    raise InvalidWebhook(str(error)) from error
                # The server is away, or starting; what became of the call is found out by asking again.
                if time.monotonic() > end or (isinstance(error, RpcError) and error.code not in _TRY_AGAIN):
                    raise
                time.sleep(RETRY_S)

    def _ask_once(self, op: str, namespace: str, members: Members) -> Members:
        if self._random.random() < 0.5:
            with self._server.rpc_client() as rpc:
                return rpc.call(op, namespace, **_members(members, as_bytes=True))
        with self._server.http_client() as client:
            answer = client.call(op, namespace, **_members(members, as_bytes=False))
        if "result" not in answer.members:
            raise RpcError(f"{answer.code}: {answer.status}")
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


def _members(members: Members, *, as_bytes: bool) -> Members:
    """The members of a call as RPC has them, or as JSON does."""
    made = dict(members)
    if "request" in made:
        made["request"] = request_members(made["request"], as_bytes=as_bytes)
    if "outcome" in made and not as_bytes:
        made["outcome"] = {**made["outcome"], "body": made["outcome"]["body"].decode()}
    return made


def _handler(gateway: Gateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = RawRequest(self.command, self.path, tuple(self.headers.items()), body)
            status, members = gateway.take(request)
            data = json.dumps(members, default=bytes.decode).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - The name is the base class's.
            """The test says what matters."""

    return Handler
