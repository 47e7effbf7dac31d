"""The HTTP app: every route of the contract's section 5, over the router. It holds no rules and starts nothing.

Whatever goes wrong leaves as a problem (RFC 9457), the framework's own refusals and our own bugs included.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Final

from quart import Response, request
from quart.routing import QuartMap
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter

from idemactor.core.commands import Command
from idemactor.core.limits import OUTCOME_BODY_BYTES_MAX
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.observability.metrics import CONTENT_TYPE as METRICS_TYPE
from idemactor.server import dispatching, http_authorize, http_large, operations
from idemactor.server.auth import Principal, forbidden
from idemactor.server.backlog import Hold
from idemactor.server.context import ServerContext
from idemactor.server.http_answers import Told, answered, problem_told, refused, told
from idemactor.server.http_request import KEY_HEADER, HttpExchange, HttpRequest, header_key, read_members
from idemactor.server.http_shared import DOOR
from idemactor.server.stuck import stuck
from idemactor.server.tracing import TRACE_FIELDS, Tracing
from idemactor.shard.mailbox import Answer, waits
from idemactor.wire.listings import query_members
from idemactor.wire.openapi import document
from idemactor.wire.outbox import ack_from, cancel_from, nack_from, operation_from, path_members, poll_from
from idemactor.wire.requests import COMMAND_OPS, Dialect, Scope, command_from

WITHOUT_LENGTH: Final = frozenset({204, 304})
READY_RETRY_S: Final = 1
"""When to ask again whether a server is ready that was not."""

_CODES: Final = {
    404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED,
    413: Code.TOO_LARGE,
    415: Code.UNSUPPORTED_MEDIA_TYPE,
}
_INTERNAL: Final = 500
_ORIGIN: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
"""What comes before the path where a target is in absolute form (RFC 9112, section 3.2.2)."""

_OPERATION: Final = "/v1/<namespace>/operations/<operation_id>"
_RECORDS: Final = "/v1/<namespace>/records"
_INCIDENTS: Final = "/v1/<namespace>/incidents"
_AUTHORIZE: Final = "/v1/<namespace>/authorize"
_VERDICT: Final = "/v1/<namespace>/verdict"
_STUCK: Final = "/v1/stuck"
_METRICS: Final = "/metrics"
_READ_QUERIES: Final = frozenset({_OPERATION, _RECORDS, _INCIDENTS, _STUCK, _AUTHORIZE, _VERDICT, _METRICS})
"""What has filters in its query, or may be sent that of another's request; and a scraper's own say nothing to us."""

View = Callable[..., Awaitable[Response]]
ForwardAuth = Callable[[ServerContext, HttpRequest, str], Awaitable[Told]]


class _AnyHostMap(QuartMap):
    """Paths are the same on every host; one that could be none would otherwise end in an error of the library."""

    def bind_to_request(
        self, request: BaseRequestWebsocket, subdomain: str | None, _server_name: str | None
    ) -> MapAdapter:
        return self.bind(
            "localhost",
            request.root_path,
            subdomain,
            request.scheme,
            request.method,
            request.path,
            request.query_string.decode(),
        )


class _App(QuartTrio):
    url_map_class = _AnyHostMap


def build_app(context: ServerContext) -> QuartTrio:
    """The app that serves ``context``. Bodies, deadlines and hostile bytes are also the guard's, see ``http_guard``."""
    app = _App("idemactor", static_folder=None)
    app.request_class = HttpRequest
    app.asgi_http_class = HttpExchange
    # A path that is almost right is wrong: a redirect would be an HTML page, and a POST behind it lost.
    app.url_map.merge_slashes = False
    app.url_map.redirect_defaults = False
    # The clock of a slow client is the guard's.
    app.config.update(MAX_CONTENT_LENGTH=OUTCOME_BODY_BYTES_MAX, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)
    views = _Views(context)
    for op in sorted(COMMAND_OPS):
        _route(app, "POST", f"/v1/<namespace>/{op}", partial(views.command, op))
    _route(app, "GET", _OPERATION, views.operation)
    _route(app, "DELETE", _OPERATION, views.cancel)
    for name, view in (("poll", views.poll), ("ack", views.ack), ("nack", views.nack)):
        _route(app, "POST", f"/v1/<namespace>/outbox/{name}", view)
    _route(app, "POST", "/v1/<namespace>/key", views.key)
    _route(app, "POST", "/v1/batch", views.batch)
    _route(app, "GET", _RECORDS, partial(views.listing, "records"))
    _route(app, "GET", _INCIDENTS, partial(views.listing, "incidents"))
    _route(app, "POST", "/v1/<namespace>/incidents/<incident_id>/acknowledge", views.acknowledge)
    _route(app, "GET", "/v1/<namespace>/policy", views.policy)
    _route(app, "GET", "/v1/shards", views.shards)
    _route(app, "GET", _STUCK, views.stuck)
    # A gateway asks with its own method or with that of the request that it asks about.
    _route(app, None, _AUTHORIZE, partial(views.forward_auth, http_authorize.authorize))
    _route(app, None, _VERDICT, partial(views.forward_auth, http_authorize.verdict))
    _route(app, "GET", "/livez", views.livez)
    _route(app, "GET", "/readyz", views.readyz)
    _route(app, "GET", _METRICS, views.metrics)
    _route(app, "GET", "/openapi.json", views.openapi)
    if context.tracing is not None:
        _trace(app, context.tracing)
    app.before_request(_refuse_loose_path)
    app.register_error_handler(RequestError, views.refused)
    app.register_error_handler(HTTPException, views.framework_refused)
    app.register_error_handler(Exception, views.failed)
    return app


def _trace(app: QuartTrio, tracing: Tracing) -> None:
    """Follow every request from where its route is known to where its answer is."""

    async def begin() -> None:
        rule = request.url_rule.rule if request.url_rule is not None else None
        route = None if rule is None else rule.replace("<", "{").replace(">", "}")
        fields = {name: values[0] for name in TRACE_FIELDS if len(values := request.headers.getlist(name)) == 1}
        _current().traced = tracing.http(request.method, route, request.path, fields, tracing.now_ns())

    async def end(response: Response) -> Response:
        traced = _current().traced
        if traced is not None:
            traced.ended(response.status_code)
        return response

    app.before_request(begin)
    app.after_request(end)


async def _refuse_loose_path() -> None:
    """A path is what was sent, byte for byte: what only becomes one by tidying up is unknown, here and to a proxy."""
    raw = request.scope["raw_path"]
    path = _ORIGIN.sub(b"", raw, count=1) if not raw.startswith(b"/") else raw
    if not path.startswith(b"/") or path.startswith(b"//") or b"%2f" in path.lower():
        raise RequestError(Code.NOT_FOUND, "there is nothing at this path")


def _refuse_query() -> None:
    """A call that reads no query is not told anything by one: its caller means a member of the body."""
    rule = request.url_rule
    if rule is not None and rule.rule not in _READ_QUERIES and request.args:
        raise InvalidRequest("this call reads nothing from the query", field=next(iter(request.args)))


def _route(app: QuartTrio, method: str | None, path: str, view: View) -> None:
    """Route ``path`` to ``view``, for one method or, None, for any there may be."""
    endpoint = f"{method or 'any'} {path}"
    if method is not None:
        # Quart's own answer to OPTIONS would be an empty page, without a token.
        app.add_url_rule(
            path,
            endpoint=endpoint,
            view_func=_as_function(view),
            methods=[method],
            provide_automatic_options=False,
        )
        return
    # With ``add_url_rule``, no methods would mean GET.
    rule = app.url_rule_class(path, methods=None, endpoint=endpoint, provide_automatic_options=False)
    app.url_map.add(rule)
    app.view_functions[endpoint] = _as_function(view)


def _as_function(view: View) -> View:
    """Quart asks whether a view is a coroutine function, which a partial of a bound method is not everywhere."""

    async def call(**arguments: str) -> Response:
        return await view(**arguments)

    return call


class _Views:
    """What answers each route."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._document = document()

    # ------------------------------------------------------------------------------------------------------- commands

    async def command(self, op: str, namespace: str) -> Response:
        scope = self._scope(namespace, op)
        members = await self._members(op)
        key = header_key(request.headers)
        command = command_from(op, members, scope, Dialect.JSON, header_key=key)
        return await self._carried_out(command, scope)

    async def _carried_out(self, command: Command, scope: Scope) -> Response:
        current = _current()
        current.waits = waits(command)
        asked = operations.Asked(scope.who, current.traced, self._hold())
        [answer] = await operations.carry_out(self._context, [command], current.handed_over, asked)
        return await self._answered(answer, command, scope)

    async def batch(self) -> Response:
        principal = self._principal()
        if request.headers.getlist(KEY_HEADER):
            raise InvalidRequest("a batch has no Idempotency-Key of its own", field="key")
        members = await self._members("batch")
        batch = operations.Batch.read(self._context, principal, members, Dialect.JSON)
        for error in batch.errors:
            self._context.observer.refused(DOOR, error.code)
        hold = self._hold()
        asked = operations.Asked(batch.who, _current().traced, hold)
        answers = await operations.carry_out(self._context, batch.commands, _current().handed_over, asked)
        return await self._listed(operations.RESULTS, batch.results(answers), {}, hold)

    async def forward_auth(self, call: ForwardAuth, namespace: str) -> Response:
        answer = await call(self._context, _current(), namespace)
        response = Response(answer.body, answer.status)
        # A stored answer has the fields that it was stored with: one may be there twice, and its type may be missing.
        response.headers.remove("content-type")
        if answer.status in WITHOUT_LENGTH:
            # RFC 9110, section 8.6: the first has none, and that of the second would be another answer's.
            response.headers.remove("content-length")
        if answer.media_type:
            response.headers["content-type"] = answer.media_type
        for name, value in answer.headers:
            response.headers.add(name, value)
        return response

    # ------------------------------------------------------------------------------------------------------- dispatch

    async def operation(self, namespace: str, operation_id: str) -> Response:
        scope = self._scope(namespace, "operation")
        asked = operation_from(path_members(operation_id, request.args.items(multi=True)), Dialect.JSON)
        current = _current()
        current.waits = asked[1] > 0
        # Looking changes nothing that could be lost. A body would be none of its business, but the client's leaving is.
        current.handed_over.set()
        current.wanted.set()
        answer, command = await dispatching.operation(self._context, scope, *asked, current.traced, self._hold())
        return await self._answered(answer, command, scope)

    async def cancel(self, namespace: str, operation_id: str) -> Response:
        scope = self._scope(namespace, "cancel")
        operation_id = cancel_from(path_members(operation_id, request.args.items(multi=True)), Dialect.JSON)
        current = _current()
        answer, command = await dispatching.cancel(
            self._context, scope, operation_id, current.handed_over, current.traced
        )
        return _response(answered(answer, command, is_operator=scope.operator))

    async def poll(self, namespace: str) -> Response:
        scope = self._scope(namespace, "outbox.poll")
        asked = poll_from(await self._members("poll"), Dialect.JSON)
        # What was taken by somebody who has left is shown again: there is nothing to see to.
        _current().waits = asked.wait_ms > 0
        _current().handed_over.set()
        return _response(told(await dispatching.poll(self._context, scope, asked, Dialect.JSON)))

    async def ack(self, namespace: str) -> Response:
        scope = self._scope(namespace, "outbox.ack")
        members = await self._members("ack")
        return await self._carried_out(ack_from(members, scope, Dialect.JSON), scope)

    async def nack(self, namespace: str) -> Response:
        scope = self._scope(namespace, "outbox.nack")
        members = await self._members("nack")
        return await self._carried_out(nack_from(members, scope, Dialect.JSON, self._context.now_ms()), scope)

    # ------------------------------------------------------------------------------------------------------ questions

    async def listing(self, name: str, namespace: str) -> Response:
        scope = self._scope(namespace, name)
        filters = query_members(request.args.items(multi=True))
        ask = operations.QUESTIONS[name](self._context, scope, filters, Dialect.JSON)
        hold = self._hold()
        members = await ask(hold)
        found = members.pop(name)
        assert isinstance(found, list)
        return await self._listed(name, found, members, hold)

    async def acknowledge(self, namespace: str, incident_id: str) -> Response:
        scope = self._scope(namespace, "acknowledge")
        members = await self._members("acknowledge")
        if members:
            raise InvalidRequest("acknowledging takes no members", field=next(iter(members)))
        ask = operations.acknowledge(self._context, scope, {"id": incident_id}, Dialect.JSON)
        _current().handed_over.set()
        return _response(told(await ask(self._hold())))

    async def key(self, namespace: str) -> Response:
        scope = self._scope(namespace, "key")
        if request.headers.getlist(KEY_HEADER):
            raise InvalidRequest("the request that the source reads has its own Idempotency-Key", field="key")
        members = await self._members("key")
        return _response(told(operations.key(scope, members, Dialect.JSON)))

    async def policy(self, namespace: str) -> Response:
        return _response(told(operations.policy(self._scope(namespace, "policy"))))

    async def shards(self) -> Response:
        return _response(told(operations.shards(self._context, self._principal())))

    async def stuck(self) -> Response:
        filters = query_members(request.args.items(multi=True))
        return _response(told(await stuck(self._context, self._principal(), filters, Dialect.JSON)()))

    # ------------------------------------------------------------------------------------------------- the server's own

    async def livez(self) -> Response:
        return _response(told({"status": "ok"}))

    async def readyz(self) -> Response:
        if self._context.draining:
            return self._not_ready(Code.OVERLOADED, "the server is shutting down")
        standings = await operations.inspect_shards(self._context)
        waits = [shard.number for shard in standings if shard.quarantined or shard.inspected is None]
        if waits:
            return self._not_ready(Code.UNAVAILABLE, f"shards that cannot answer: {', '.join(map(str, waits))}")
        return _response(told({"status": "ready"}))

    async def metrics(self) -> Response:
        principal = self._principal()
        if not principal.may_read_metrics:
            raise forbidden("this token does not read metrics")
        return Response(await operations.exposition(self._context, principal), content_type=METRICS_TYPE)

    async def openapi(self) -> Response:
        return _response(told(self._document))

    # ----------------------------------------------------------------------------------------------- what goes wrong

    async def refused(self, error: RequestError) -> Response:
        self._context.observer.refused(DOOR, error.code)
        return _response(refused(error, request.path))

    async def framework_refused(self, error: HTTPException) -> Response:
        status = error.code or _INTERNAL
        code = _CODES.get(status, Code.INVALID_REQUEST)
        self._context.observer.refused(DOOR, code)
        title = None if status in _CODES else error.name
        response = _response(problem_told(status, code, f"{error.name}.", request.path, title=title))
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
        return response

    async def failed(self, error: Exception) -> Response:
        self._context.observer.connection_failed(DOOR, error)
        detail = "The server failed; what became of the call is not known."
        return _response(problem_told(_INTERNAL, Code.UNAVAILABLE, detail, request.path, title="Internal Server Error"))

    # ---------------------------------------------------------------------------------------------------------- shared

    def _principal(self) -> Principal:
        principal = self._context.authenticator.from_header(request.headers.getlist("Authorization"))
        _refuse_query()
        return principal

    def _scope(self, namespace: str, op: str) -> Scope:
        return self._context.authenticator.scope(self._principal(), namespace, op)

    def _hold(self) -> Hold:
        """Where the answer to this request counts until it is sent."""
        hold = _current().hold = Hold(self._context.backlog, Dialect.JSON)
        return hold

    async def _answered(self, answer: Answer, command: Command, scope: Scope) -> Response:
        """The answer to a call that reached its shard."""
        make = partial(answered, answer, command, is_operator=scope.operator)
        hold = _current().hold
        if hold is None or hold.held_bytes <= http_large.ENCODED_AT_ONCE_BYTES:
            return _response(make())
        return _in_pieces(*await http_large.whole(make, hold.backlog.encoding), hold)

    async def _listed(self, name: str, items: Iterable[object], rest: dict[str, object], hold: Hold) -> Response:
        """The answer whose member ``name`` is a list; ``rest`` are its other members."""
        if hold.held_bytes <= http_large.ENCODED_AT_ONCE_BYTES:
            return _response(told({name: list(items), **rest}))
        return _in_pieces(*await http_large.listed(name, items, rest, hold.backlog.encoding), hold)

    async def _members(self, op: str) -> dict[str, object]:
        return await read_members(_current(), op, self._context.arrivals)

    def _not_ready(self, code: Code, detail: str) -> Response:
        return _response(problem_told(503, code, detail, request.path, retry_s=READY_RETRY_S))


def _response(answer: Told) -> Response:
    return Response(answer.body, answer.status, dict(answer.headers), content_type=answer.media_type)


def _in_pieces(answer: Told, pieces: list[bytes], hold: Hold) -> Response:
    """A large answer; each piece of it counts with ``hold`` until it is the connection's to write, which counts it."""

    async def sent() -> AsyncIterator[bytes]:
        pieces.reverse()
        while pieces:
            hold.sent(len(pieces[-1]))
            yield pieces.pop()

    response = Response(sent(), answer.status, dict(answer.headers), content_type=answer.media_type)
    response.content_length = sum(map(len, pieces))
    return response


def _current() -> HttpRequest:
    found = request._get_current_object()  # type: ignore[attr-defined]  # A LocalProxy, which the stubs hide.
    assert isinstance(found, HttpRequest)
    return found
