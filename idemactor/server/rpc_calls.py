"""What is asked and answered on one MessagePack-RPC connection (contract, 6 and 12); bytes come and go elsewhere.

What one read brought goes to the router in one call, in the order in which it was sent, so that the requests of one
connection for one key are applied in that order, and a login counts for everything behind it. Answers come back by
batches of a shard, each encoded once and sent in one write.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

import trio

from idemactor.core.commands import Command
from idemactor.core.replies import Dispatched, Reserved
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.server import dispatching, operations
from idemactor.server.audited import audited
from idemactor.server.auth import Principal, unauthenticated
from idemactor.server.backlog import Hold, outcome_bytes
from idemactor.server.context import ServerContext
from idemactor.server.sinks import Replies
from idemactor.server.stuck import stuck
from idemactor.server.tracing import Called
from idemactor.shard.mailbox import OVERLOADED_RETRY_MS, Answer, Envelope, waits
from idemactor.shard.tracing import traced
from idemactor.wire.answers import body_of, dispatched_body, reserved_body
from idemactor.wire.frames import BadRequest, FrameWriter, Incoming, Request, text_of
from idemactor.wire.outbox import ack_from, cancel_from, nack_from, operation_from, poll_from
from idemactor.wire.refusals import detail_of, refusal_of
from idemactor.wire.requests import (
    COMMAND_OPS,
    OPERATOR_OPS,
    Dialect,
    Members,
    Scope,
    command_from,
    members_of,
)

DOOR: Final = "rpc"

_CUT_OFF: Final = "cut_off"
"""How a trace ends whose connection ended before its answer was there."""

_NO_MEMBERS: Final = Members((), Dialect.MSGPACK)

Frame = tuple[int, str | None, object]
"""(msgid, error or None, result or None)"""


class Link(Protocol):
    """What the calls need of the connection that they came on."""

    @property
    def room(self) -> int:
        """How many bytes of answers may be sent before the client reads some."""

    def send(self, data: bytes) -> None:
        """Send frames; never blocks."""

    def stir(self) -> None:
        """Take note that fewer requests are in flight than before."""

    def fail(self, error: Exception) -> None:
        """Close the connection: an answer could not be written."""

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that takes a while, as long as the connection lives."""


class _Nobody:
    """The ``Link`` of a connection that is over: answers may come later than its end."""

    @property
    def room(self) -> int:
        """None."""
        return 0

    def send(self, data: bytes) -> None:
        """Nobody reads it."""

    def stir(self) -> None:
        """Nobody waits."""

    def fail(self, error: Exception) -> None:
        """It is closed already."""

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Nobody would be told what came of it."""


_NOBODY: Final = _Nobody()


class _Call(NamedTuple):
    """The tag of a command: what its answer needs to become a frame."""

    msgid: int
    command: Command
    is_operator: bool
    waits: bool


class _Kept(NamedTuple):
    """The tag of a call whose answer waits for room, and what its outcome counts for meanwhile, bytes."""

    call: _Call
    size: int


class _Told(NamedTuple):
    """An answer that came by a task, as a shard delivers them."""

    call: _Call
    answer: Answer


class _Whole(NamedTuple):
    """The tag of what is answered at once for several commands, or by a task: its frame is made when there is room."""

    calls: int
    is_waiting: bool
    make: Callable[[], Frame]
    counted: Replies | Hold | None = None


class RpcCalls:
    """The calls of one connection, and the ``Sink`` of their commands.

    Args:
        context: The server.
        waiting_max: How many calls may wait; one more is told ``overloaded``.
        link: The connection.
        route: Where commands go.

    Attributes:
        closed: Set once the client was seen to leave: no call of its that waits is granted any more.
        in_flight: Requests being worked on, those that wait for their key left out.
        waiting: Calls that may take a while on purpose: reserves that wait for their key, and others like them.
    """

    def __init__(
        self, context: ServerContext, waiting_max: int, link: Link, route: Callable[[Sequence[Envelope]], None]
    ) -> None:
        self.closed = False
        self.in_flight = 0
        self.waiting = 0
        self._context = context
        self._backlog = context.backlog
        self._tracing = context.tracing
        self._waiting_max = waiting_max
        self._link: Link = link
        self._route = route
        self._principal: Principal | None = context.authenticator.anonymous
        self._epoch = context.authenticator.epoch
        self._writer = FrameWriter()
        self._batch: list[Envelope] = []
        self._said: list[Frame] = []
        self._held: deque[tuple[object, Any]] = deque()
        self._traced: Called | None = None

    @property
    def known(self) -> bool:
        """Whether the client has proved who it is."""
        self._keep_up()
        return self._principal is not None

    @property
    def tenant(self) -> str:
        """Whose keys the client works on; empty where it has not said who it is."""
        return "" if self._principal is None else self._principal.tenant

    def part(self) -> None:
        """The connection is over. What is in flight knows these calls and may take long: it keeps nothing else."""
        self.closed = True
        self._link = _NOBODY
        self._batch, self._said = [], []
        while self._held:
            tag, _ = self._held.popleft()
            if type(tag) is _Kept:
                self._backlog.held_bytes -= tag.size
            elif type(tag) is _Whole and tag.counted is not None:
                tag.counted.abandon()

    def _keep_up(self) -> None:
        """Rights last as long as their token does, on connections that are open already, too."""
        authenticator = self._context.authenticator
        if self._epoch != authenticator.epoch:
            self._epoch = authenticator.epoch
            self._principal = authenticator.renewed(self._principal)

    # --------------------------------------------------------------------------------------------------- answers leave

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Take the answers of one batch of a shard: encoded once, sent in one write, as far as there is room."""
        if self._link is not _NOBODY:
            if self._backlog.full:
                answers = self._backlog.spared(answers)
            self._held.extend(answers)
            self.send_held()
            if self._held:
                self._keep(len(answers))
            self._link.stir()

    def _answer(self, whole: _Whole) -> None:
        """As ``deliver``."""
        if self._link is not _NOBODY:
            self._held.append((whole, None))
            self.send_held()
            self._link.stir()
        elif whole.counted is not None:
            whole.counted.abandon()

    def _keep(self, latest: int) -> None:
        """What is left of the ``latest`` answers has to wait: its outcomes count, or are not kept."""
        backlog = self._backlog
        left = [self._held.pop() for _ in range(min(latest, len(self._held)))]
        for call, answer in reversed(left):
            size = outcome_bytes(answer)
            if not size:
                self._held.append((call, answer))
            elif backlog.crowded:
                self._held.append((call, backlog.refuse(answer)))
            else:
                backlog.held_bytes += size
                self._held.append((_Kept(cast("_Call", call), size), answer))

    @property
    def held(self) -> bool:
        """Whether answers wait for room. They count as in flight."""
        return bool(self._held)

    def send_held(self) -> None:
        """Send what there is room for. An answer is encoded no sooner: before that, an outcome is the record's own."""
        try:
            while self._held and (room := self._link.room) > 0:
                self._link.send(self._writer.encode(self._frames(), room))
        except Exception as error:  # A sink never raises: the shard has other callers.
            self._link.fail(error)

    def _frames(self) -> Iterator[Frame]:
        """Take the frames of what is held, one by one."""
        held = self._held
        while held:
            call, answer = held.popleft()
            if type(call) is _Call:
                calls, is_waiting, frame = 1, call.waits, _frame(call, answer)
            elif type(call) is _Kept:
                self._backlog.held_bytes -= call.size
                calls, is_waiting, frame = 1, call.call.waits, _frame(call.call, answer)
            else:
                assert type(call) is _Whole
                calls, is_waiting, frame = call.calls, call.is_waiting, call.make()
            if is_waiting:
                self.waiting -= calls
            else:
                self.in_flight -= calls
            yield frame

    def _say(self, msgid: int, result: object) -> None:
        self._said.append((msgid, None, result))

    def _refuse(self, msgid: int, error: RequestError) -> None:
        self._said.append(self._refusal(msgid, error))

    def _refusal(self, msgid: int, error: RequestError) -> Frame:
        self._context.observer.refused(DOOR, error.code)
        return msgid, f"{error.code}: {_named(error)}", None

    def _flush(self) -> None:
        """Send what was said since the last time, in one write."""
        if self._said:
            said, self._said = self._said, []
            self._link.send(self._writer.encode(said))

    # --------------------------------------------------------------------------------------------------- requests come

    def take(self, incoming: Sequence[Incoming]) -> None:
        """What one read brought, in order; its commands go to the router together."""
        self._keep_up()
        for one in incoming:
            try:
                if type(one) is Request and one.method in COMMAND_OPS:
                    self._command(one)
                else:
                    self._other(one)
            except RequestError as error:
                self._refuse(one.msgid, error)
        if self._batch:
            # Not kept until the next read: a command may be large, and the client silent.
            batch, self._batch = self._batch, []
            self._route(batch)
        if self._said:
            self._flush()

    def turn_away(self, msgid: int | None, error: RequestError) -> None:
        """Refuse a request of which only the beginning came; None: not even its id."""
        if msgid is None:
            self._context.observer.refused(DOOR, error.code)
        else:
            self._refuse(msgid, error)
            self._flush()

    def _other(self, one: Incoming) -> None:
        """What is no command. Its trace ends here, unless what answers it later has taken that over."""
        method = None if isinstance(one, BadRequest) or one.method not in _METHODS else one.method
        parent = _parent_of(one)
        if self._tracing is not None:
            self._traced = self._tracing.called(method, parent)
        code: str | None = None
        try:
            if isinstance(one, BadRequest):
                raise InvalidRequest(one.detail)
            if method is None:
                raise InvalidRequest("unknown method")
            _METHODS[method](self, one)
        except RequestError as error:
            code = error.code
            raise
        finally:
            traced_call = self._take_trace()
            if traced_call is not None:
                traced_call.over(code)

    def _take_trace(self) -> Called | None:
        """The trace of the call in hand; whoever takes it ends it."""
        taken, self._traced = self._traced, None
        return taken

    def _command(self, request: Request) -> None:
        parent = _parent_of(request)
        if self._tracing is None:
            self._batch.append(self._envelope(request))
            return
        try:
            envelope = self._envelope(request)
        except RequestError as error:
            self._tracing.called(request.method, parent).over(error.code)
            raise
        command: Any = envelope.command
        self._batch.append(traced(envelope, self._tracing.rpc(request.method, parent, command)))

    def _envelope(self, request: Request) -> Envelope:
        method, params = request.method, request.params
        scope = self._context.authenticator.scope(self._principal, self._namespace(params), method)
        command = command_from(method, params, scope, Dialect.MSGPACK)
        is_waiting = waits(command)
        self._count(is_waiting)
        envelope = Envelope(command, self, _Call(request.msgid, command, scope.operator, is_waiting))
        return envelope if method not in OPERATOR_OPS else audited(self._context.audit, scope.who, envelope)

    def _count(self, is_waiting: bool) -> None:
        """One more is in flight, or waits."""
        if not is_waiting:
            self.in_flight += 1
        elif self.waiting < self._waiting_max:
            self.waiting += 1
        else:
            self._context.observer.overloaded(1)
            raise RequestError(
                Code.OVERLOADED, "too many calls wait on this connection", retry_after_ms=OVERLOADED_RETRY_MS
            )

    def _namespace(self, params: dict[str, Any]) -> str:
        """Takes the namespace out of the members, which are then those of the HTTP body."""
        if self._principal is None:
            raise unauthenticated()
        given = params.pop("namespace", None)
        namespace = given if type(given) is str and given.isascii() else text_of(given)
        if namespace is None:
            raise InvalidRequest("namespace is missing, or no text", field="namespace")
        return namespace

    def _ping(self, request: Request) -> None:
        _refuse_members(request.params)
        self._say(request.msgid, {"result": "pong"})

    def _auth(self, request: Request) -> None:
        # Whatever goes wrong from here on, the rights of before are gone.
        self._principal = self._context.authenticator.anonymous
        token = text_of(request.params.pop("token", None))
        _refuse_members(request.params)
        if token is None:
            raise InvalidRequest("token is missing, or no text", field="token")
        self._principal = self._context.authenticator.authenticate(token)
        if self._principal is None:
            raise unauthenticated()
        result = {"result": "authenticated", "tenant": self._principal.tenant, "role": str(self._principal.role)}
        self._say(request.msgid, result)

    def _key(self, request: Request) -> None:
        scope = self._scope(request)
        self._say(request.msgid, operations.key(scope, request.params, Dialect.MSGPACK))

    def _policy(self, request: Request) -> None:
        scope = self._scope(request)
        _refuse_members(request.params)
        self._say(request.msgid, operations.policy(scope))

    def _shards(self, request: Request) -> None:
        told = operations.shards(self._context, self._principal)
        _refuse_members(request.params)
        self._say(request.msgid, told)

    def _stuck(self, request: Request) -> None:
        ask = stuck(self._context, self._principal, request.params, Dialect.MSGPACK)

        async def asked() -> Frame:
            return request.msgid, None, await ask()

        self._spawn(request, asked)

    def _batched(self, request: Request) -> None:
        batch = operations.Batch.read(self._context, self._principal, request.params, Dialect.MSGPACK)
        for error in batch.errors:
            self._context.observer.refused(DOOR, error.code)
        count = len(batch.commands)
        call = self._take_trace()

        def finish() -> None:
            if call is not None:
                call.over(None)
            self._answer(_Whole(count, False, lambda: (request.msgid, None, batch.body(replies.take())), replies))

        replies = Replies(count, finish, self._backlog)
        self.in_flight += count
        self._batch.extend(batch.envelopes(self._context, replies, call))
        if not count:
            finish()

    def _listing(self, request: Request) -> None:
        scope = self._scope(request)
        ask = operations.QUESTIONS[request.method](self._context, scope, request.params, Dialect.MSGPACK)

        hold = Hold(self._backlog, Dialect.MSGPACK)

        async def asked() -> Frame:
            return request.msgid, None, await ask(hold)

        self._spawn(request, asked, hold=hold)

    def _spawn(
        self,
        request: Request,
        work: Callable[[], Awaitable[Frame | _Told]],
        *,
        is_waiting: bool = False,
        hold: Hold | None = None,
    ) -> None:
        """Answer once ``work`` is done, which takes more than one shard, or more than one step.

        ``hold`` is where it lets its answer count until that is encoded.
        """
        self._count(is_waiting)
        call = self._take_trace()

        async def answer() -> None:
            code: str | None = _CUT_OFF
            told: Frame | _Told | None = None
            try:
                told = await work()
                code = _code_of(told)
            except RequestError as error:
                told, code = self._refusal(request.msgid, error), error.code
            finally:
                if call is not None:
                    call.over(code)
                if hold is not None and (told is None or code is not None):
                    hold.abandon()
            if isinstance(told, _Told):
                self.deliver([told])
            else:
                self._answer(_Whole(1, is_waiting, partial(_released, told, hold), hold))

        self._link.spawn(answer)

    # ------------------------------------------------------------------------------------------------------- dispatch

    def _operation(self, request: Request) -> None:
        scope = self._scope(request)
        operation_id, wait_ms = operation_from(request.params, Dialect.MSGPACK)
        call = self._traced

        async def look() -> _Told:
            answer, command = await dispatching.operation(self._context, scope, operation_id, wait_ms, call)
            return _Told(_Call(request.msgid, command, scope.operator, wait_ms > 0), answer)

        self._spawn(request, look, is_waiting=wait_ms > 0)

    def _cancel(self, request: Request) -> None:
        scope = self._scope(request)
        operation_id = cancel_from(request.params, Dialect.MSGPACK)
        call = self._traced

        async def take_back() -> _Told:
            answer, command = await dispatching.cancel(self._context, scope, operation_id, trio.Event(), call)
            return _Told(_Call(request.msgid, command, scope.operator, False), answer)

        self._spawn(request, take_back)

    def _poll(self, request: Request) -> None:
        scope = self._scope(request)
        asked = poll_from(request.params, Dialect.MSGPACK)

        async def fetch() -> Frame:
            return request.msgid, None, await dispatching.poll(self._context, scope, asked, Dialect.MSGPACK)

        self._spawn(request, fetch, is_waiting=asked.wait_ms > 0)

    def _ack(self, request: Request) -> None:
        scope = self._scope(request)
        self._settle(request, ack_from(request.params, scope, Dialect.MSGPACK), scope)

    def _nack(self, request: Request) -> None:
        scope = self._scope(request)
        now_ms = self._context.now_ms()
        self._settle(request, nack_from(request.params, scope, Dialect.MSGPACK, now_ms), scope)

    def _settle(self, request: Request, command: Command, scope: Scope) -> None:
        self.in_flight += 1
        envelope = Envelope(command, self, _Call(request.msgid, command, scope.operator, False))
        call = self._take_trace()
        self._batch.append(envelope if call is None else traced(envelope, call))

    def _scope(self, request: Request) -> Scope:
        namespace = self._namespace(request.params)
        scope = self._context.authenticator.scope(self._principal, namespace, request.method)
        if self._traced is not None:
            self._traced.within(scope.namespace)
        return scope


_METHODS: Final[dict[str, Callable[[RpcCalls, Request], None]]] = {
    "ping": RpcCalls._ping,
    "auth": RpcCalls._auth,
    "key": RpcCalls._key,
    "policy": RpcCalls._policy,
    "shards": RpcCalls._shards,
    "batch": RpcCalls._batched,
    "stuck": RpcCalls._stuck,
    "operation": RpcCalls._operation,
    "cancel": RpcCalls._cancel,
    "outbox.poll": RpcCalls._poll,
    "outbox.ack": RpcCalls._ack,
    "outbox.nack": RpcCalls._nack,
    **dict.fromkeys(operations.QUESTIONS, RpcCalls._listing),
}
"""What is no command, by method."""


def _frame(call: _Call, answer: Answer) -> Frame:
    if type(answer) is Reserved:
        return call.msgid, None, reserved_body(answer)
    if type(answer) is Dispatched:
        return call.msgid, None, dispatched_body(answer)
    refusal = refusal_of(answer)
    if refusal is not None and refusal.error:
        return call.msgid, f"{refusal.code}: {detail_of(answer)}", None
    return call.msgid, None, body_of(answer, call.command, operator=call.is_operator, dialect=Dialect.MSGPACK)


def _released(frame: Frame, hold: Hold | None) -> Frame:
    """The frame of what is about to be encoded."""
    if hold is not None:
        hold.abandon()
    return frame


def _named(error: RequestError) -> str:
    """The detail, behind the member at fault where it does not name that itself: an error is one text (contract, 6)."""
    if error.field is None or re.search(rf"(?<!\w){re.escape(error.field)}(?!\w)", error.detail):
        return error.detail
    return f"{error.field}: {error.detail}"


def _parent_of(one: Incoming) -> str | None:
    """Takes out where the caller's own trace stands, on a server that does not trace, too."""
    return text_of(one.params.pop("traceparent", None)) if isinstance(one, Request) else None


def _code_of(told: Frame | _Told) -> str | None:
    """The code of an error; None: there is none."""
    if isinstance(told, _Told):
        refusal = refusal_of(told.answer)
        return refusal.code if refusal is not None and refusal.error else None
    return None if told[1] is None else told[1].partition(":")[0]


def _refuse_members(params: dict[str, Any]) -> None:
    members_of(_NO_MEMBERS, params)
