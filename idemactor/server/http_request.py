"""Requests as the HTTP app sees them: their bodies, their keys, and callers that hang up (contract, 5 and 12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable
from quart import Request
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers.request import TrioRequest
from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge

from idemactor.core.limits import BODY_BYTES_MAX, OUTCOME_BODY_BYTES_MAX
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.server.arrivals import Arrivals
from idemactor.server.backlog import Hold
from idemactor.server.http_shared import HANGING_UP_MS
from idemactor.server.tracing import Request as Traced
from idemactor.wire.idempotency_key import InvalidKey, parse_key_header
from idemactor.wire.media import is_json
from idemactor.wire.strict_json import InvalidJSON, parse

KEY_HEADER: Final = "Idempotency-Key"

_MS_PER_S: Final = 1_000
_OUTCOME_OPS: Final = frozenset({"commit", "accept", "resolve", "dispatch", "ack", "nack"})


class HttpRequest(TrioRequest):
    """A request that knows how far it has come.

    Attributes:
        handed_over: Set once its commands are with the shards, from where nothing takes them back.
        waits: Whether it may wait for its key: a client that leaves ends that at once.
        wanted: Set once the call has been found to be one that its body is needed for; before that none of it is taken.
        asks: Whether a gateway asks about somebody else's request: where it left, its answer was no, and a key that is
            accepted all the same is lost.
        traced: Its trace; None: nobody follows it.
        hold: Where its answer counts until it is sent; None: it is small.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.handed_over = trio.Event()
        self.wanted = trio.Event()
        self.waits = False
        self.asks = self.path.endswith("/authorize")
        self.traced: Traced | None = None
        self.hold: Hold | None = None
        if not self.content_length and "Transfer-Encoding" not in self.headers:
            # There is nothing to take but the news that the client left.
            self.wanted.set()


class HttpExchange(TrioASGIHTTPConnection):
    """One request and its answer: a caller who hangs up undoes nothing that was read whole, but waits no longer."""

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        """Answer; whatever the end, the answer counts no more."""
        try:
            await super().handle_request(nursery, request, send)
        finally:
            if isinstance(request, HttpRequest) and request.hold is not None:
                request.hold.abandon()

    async def handle_messages(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable
    ) -> None:
        """Feed the body to the app; when the client leaves, cancel the app, but not before its commands are routed.

        Only a gateway that asks is not waited for: what is not routed yet will not be. What is refused by its head
        alone ends before any of its body is taken.
        """
        read_whole = False
        if isinstance(request, HttpRequest):
            await request.wanted.wait()
        while (is_last := _appended(request, await receive())) is not None:
            read_whole = read_whole or is_last
        if read_whole and isinstance(request, HttpRequest) and (request.handed_over.is_set() or not request.asks):
            await request.handed_over.wait()
            if not request.waits:
                # It may only have closed its sending side, as a shell's netcat does: the answer is about to be there.
                await trio.sleep(HANGING_UP_MS / _MS_PER_S)
        nursery.cancel_scope.cancel()


def _appended(request: Request, message: ASGIReceiveEvent) -> bool | None:
    """Give the app a piece of a body: whether it was the last; None: it is no piece. No caller keeps what was in it."""
    if message["type"] != "http.request":
        return None
    request.body.append(message.get("body", b""))
    if message.get("more_body", False):
        return False
    request.body.set_complete()
    return True


async def read_members(request: HttpRequest, op: str, arrivals: Arrivals) -> dict[str, object]:
    """The members of a request's JSON object; a request without a body has none.

    Args:
        request: Its body is read here, and no further than it may be long.
        op: The call; those that carry an outcome may be longer.
        arrivals: The bodies among which it has to find room.

    Raises:
        RequestError: UNSUPPORTED_MEDIA_TYPE, TOO_LARGE, OVERLOADED or INVALID_REQUEST.
    """
    has_type = _check_type(request.headers)
    body = await read_body(request, OUTCOME_BODY_BYTES_MAX if op in _OUTCOME_OPS else BODY_BYTES_MAX, arrivals)
    if not body:
        return {}
    return members_of(body, has_type=has_type)


def members_of(body: bytes, *, has_type: bool) -> dict[str, object]:
    """The members of a body that was read whole.

    Args:
        has_type: Whether its content type is JSON; False: it has none.

    Raises:
        RequestError: UNSUPPORTED_MEDIA_TYPE or INVALID_REQUEST.
    """
    if not has_type:
        raise RequestError(Code.UNSUPPORTED_MEDIA_TYPE, "a body needs a content type, application/json")
    try:
        members = parse(body)
    except InvalidJSON as error:
        what = f"the body is {error}" if str(error).startswith("not ") else str(error)
        raise InvalidRequest(what, field=error.member) from None
    if not isinstance(members, dict):
        raise InvalidRequest("the body is a JSON object")
    return members


def header_key(headers: Headers) -> str | None:
    """The key of the ``Idempotency-Key`` header; None where there is none.

    Raises:
        InvalidRequest: It is sent twice, blank, malformed or no possible key.
    """
    # The server hands on header bytes as Latin-1 text, so that this gives back what was sent.
    return key_of([value.encode("latin-1") for value in headers.getlist(KEY_HEADER)])


def key_of(values: Sequence[bytes]) -> str | None:
    """The key of the values of ``Idempotency-Key`` as they were sent, see ``header_key``."""
    if not values:
        return None
    try:
        return parse_key_header(values)
    except InvalidKey as error:
        raise InvalidRequest(str(error), field="key") from None


def _check_type(headers: Headers) -> bool:
    """Whether a content type is given; one that is not JSON, or a coded body, is refused."""
    if [coding for coding in headers.getlist("Content-Encoding") if coding.strip().lower() != "identity"]:
        raise RequestError(Code.UNSUPPORTED_MEDIA_TYPE, "bodies are taken without a content coding")
    values = headers.getlist("Content-Type")
    if not values:
        return False
    if len(values) > 1 or not is_json(values[0]):
        raise RequestError(Code.UNSUPPORTED_MEDIA_TYPE, "the content type is application/json, once")
    return True


async def read_body(request: HttpRequest, bytes_max: int, arrivals: Arrivals) -> bytes:
    """The body of a request, read no further than it may be long, and as there is room for it.

    Raises:
        RequestError: TOO_LARGE or OVERLOADED.
    """
    announced = request.content_length or 0
    if announced > bytes_max:
        raise _too_large(bytes_max)
    body = bytearray()
    with arrivals.begin() as arrival:
        arrival.holds(0, announced)
        request.wanted.set()
        try:
            async for piece in request.body:
                body += piece
                # Not kept until the next one comes: it may be nearly all there is.
                del piece
                if len(body) > bytes_max:
                    raise _too_large(bytes_max)
                arrival.holds(len(body), announced)
        except RequestEntityTooLarge:
            raise _too_large(bytes_max) from None
    return bytes(body)


def _too_large(bytes_max: int) -> RequestError:
    return RequestError(Code.TOO_LARGE, f"the body of this call has at most {bytes_max} bytes")
