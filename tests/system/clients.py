"""Two small clients of the doors, blocking and thread-safe by being one per thread; and raw bytes over a socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import msgpack

JSON_TYPE: Final = "application/json"
UNIX_PREFIX: Final = "unix:"

Members = dict[str, Any]


class Lost(Exception):
    """No answer came: the connection could not be made, broke, or took too long."""


class RpcError(Exception):
    """An error of the RPC door, ``CODE: detail``."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(":")[0]


def connect(address: str, timeout_s: float = 10.0) -> socket.socket:
    """A connected socket: to ``host:port`` or ``unix:path``."""
    if address.startswith(UNIX_PREFIX):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout_s)
        try:
            sock.connect(address.removeprefix(UNIX_PREFIX))
        except BaseException:
            sock.close()
            raise
        return sock
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_to_end(sock: socket.socket) -> bytes:
    """All that comes until the other side closes, or resets."""
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65_536):
            received += piece
    return bytes(received)


def raw(address: str, data: bytes, timeout_s: float = 10.0) -> bytes:
    """Sends ``data`` on a connection of its own and gives all that comes back until the server closes."""
    with connect(address, timeout_s) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
        return read_to_end(sock)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. ``members`` are those of its JSON body."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    members: Members

    @property
    def code(self) -> str | None:
        code = self.members.get("code")
        return code if isinstance(code, str) else None


class HttpClient:
    """One keep-alive connection to the HTTP door; a new one after each loss."""

    def __init__(self, address: str, timeout_s: float = 10.0, token: str | None = None) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, op: str, namespace: str = "default", **members: Any) -> Answer:
        """A command in a namespace."""
        return self.post(f"/v1/{namespace}/{op}", members)

    def post(self, path: str, members: object, **headers: str) -> Answer:
        return self.send("POST", path, json.dumps(members).encode(), {"Content-Type": JSON_TYPE, **headers})

    def get(self, path: str) -> Answer:
        return self.send("GET", path, None, {})

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """One request.

        Raises:
            Lost: There is no answer; what became of the call is not known.
        """
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection("idemactor.test", timeout=self._timeout_s)
                self._connection.sock = connect(self._address, self._timeout_s)
            self._connection.request(method, path, body, {**self._headers, **headers})
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Lost(str(error)) from error
        if response.will_close:
            self.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        members = json.loads(data) if "json" in found.get("content-type", "") else {}
        return Answer(response.status, found, data, members)


class RpcClient:
    """One connection to the RPC door; a new one after each loss."""

    def __init__(self, address: str, timeout_s: float = 10.0) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._sock: socket.socket | None = None
        self._unpacker = msgpack.Unpacker()
        self._msgid = 0

    def __enter__(self) -> RpcClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def call(self, op: str, namespace: str = "default", **members: Any) -> Members:
        """A command in a namespace; the members of its result.

        Raises:
            Lost: There is no answer.
            RpcError: The answer is an error.
        """
        return self.request(op, {"namespace": namespace, **members})

    def request(self, method: object, params: Mapping[Any, Any]) -> Members:
        """One request, and the answer to it."""
        [answer] = self.pipeline([(method, params)])
        if isinstance(answer, RpcError):
            raise answer
        return answer

    def pipeline(self, calls: Sequence[tuple[object, Mapping[Any, Any]]]) -> list[Members | RpcError]:
        """Many requests at once; their answers in the order of the requests."""
        first = self._msgid
        self._msgid = (self._msgid + len(calls)) % 2**31
        frames = [msgpack.packb([0, first + index, *_call(call)]) for index, call in enumerate(calls)]
        answers: dict[int, Members | RpcError] = {}
        try:
            if self._sock is None:
                self._sock = connect(self._address, self._timeout_s)
                self._unpacker = msgpack.Unpacker()
            self._sock.sendall(b"".join(frames))
            while len(answers) < len(calls):
                for kind, msgid, error, result in self._frames():
                    assert kind == 1
                    answers[msgid - first] = result if error is None else RpcError(error)
        except OSError as error:
            self.close()
            raise Lost(str(error)) from error
        return [answers[index] for index in range(len(calls))]

    def _frames(self) -> list[Any]:
        assert self._sock is not None
        data = self._sock.recv(65_536)
        if not data:
            raise ConnectionError("closed by the server")
        self._unpacker.feed(data)
        return list(self._unpacker)


def _call(call: tuple[object, Mapping[Any, Any]]) -> tuple[object, list[Mapping[Any, Any]]]:
    method, params = call
    return method, [params]


def frame(msgid: int, method: object, params: object) -> bytes:
    """The bytes of one RPC request; ``params`` is its one map."""
    packed: bytes = msgpack.packb([0, msgid, method, [params]])
    return packed
