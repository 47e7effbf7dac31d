"""The same client without a server: the shards run inside the caller's own program, on trio.

Calls take the same way as from a connection (``wire``: members to commands, answers to members), into the same router
and the same shards; only the sockets are missing. So what works here works there.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import trio
from anyio.abc import TaskStatus

from idemactor.client import errors
from idemactor.client.clock import ManualClock
from idemactor.client.flight import Answer, Flight
from idemactor.client.protocol import Protocol, encode_body
from idemactor.client.results import error_of
from idemactor.core.census import Census
from idemactor.core.clock import Clock, Sequencer
from idemactor.core.commands import Cancel, Command, Watch
from idemactor.core.keys import Identity, InvalidNamespace, check_namespace
from idemactor.core.limits import BATCH_OPS_MAX
from idemactor.core.policy import Policy
from idemactor.core.queries import (
    FindOperation,
    IncidentsPage,
    Inspect,
    Inspected,
    ListStuck,
    Query,
    RecordsPage,
    StuckPage,
)
from idemactor.core.replies import Unknown
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.observability.observer import NOBODY
from idemactor.shard import mailbox
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.bell import Bell
from idemactor.shard.broom import Broom
from idemactor.shard.entropy import system_entropy
from idemactor.shard.errands import find_operation, not_now, poll, wanted_by
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Router
from idemactor.shard.start import with_remains
from idemactor.storage.base import Engine, Opened
from idemactor.storage.memory import MemoryEngine
from idemactor.wire.answers import body_of
from idemactor.wire.fields import Dialect
from idemactor.wire.intents import out_of_line
from idemactor.wire.listings import acknowledge_from, incidents_walk, records_walk
from idemactor.wire.outbox import (
    Poll,
    ack_from,
    cancel_from,
    nack_from,
    no_such_operation,
    operation_from,
    poll_body,
    poll_from,
)
from idemactor.wire.policies import policy_body
from idemactor.wire.refusals import detail_of, refusal_of
from idemactor.wire.requests import COMMAND_OPS, Scope, command_from
from idemactor.wire.rpc_message import Incoming, Request, decode
from idemactor.wire.stuck import stuck_body, stuck_from

TENANT: Final = "default"
"""Whose keys these are: as without credentials on loopback (contract, section 10)."""

_DISPATCHING: Final = frozenset({"operation", "cancel", "outbox.poll", "outbox.ack", "outbox.nack"})
_WALKS: Final = {"records": records_walk, "incidents": incidents_walk}


class _Anything(dict[str, Policy]):
    """Every well-formed name is a namespace with the built-in settings."""

    def __missing__(self, name: str) -> Policy:
        check_namespace(name)
        return self.setdefault(name, Policy())


class _Replies:
    """Where the answers of one call go, see ``mailbox.Sink``."""

    __slots__ = ("answers", "closed", "done", "missing")

    def __init__(self, count: int) -> None:
        self.closed = False
        self.answers: list[mailbox.Answer | None] = [None] * count
        self.missing = count
        self.done = trio.Event()

    def deliver(self, answers: list[tuple[object, mailbox.Answer]]) -> None:
        """Take the answers of a batch."""
        for tag, answer in answers:
            assert isinstance(tag, int)
            self.answers[tag] = answer
            self.missing -= 1
        if not self.missing:
            self.done.set()

    async def wait(self) -> list[mailbox.Answer]:
        """Every answer; who is cancelled here has left, and is granted nothing that it waited for."""
        try:
            if self.missing:
                await self.done.wait()
        except trio.Cancelled:
            self.closed = True
            raise
        return [answer for answer in self.answers if answer is not None]


@dataclass(frozen=True, slots=True)
class OpenShards:
    """Engines that are open, with what they said, and the time that their shards go by."""

    engines: Sequence[tuple[Engine, Opened]]
    clock: Clock


Opening = Callable[[], AbstractAsyncContextManager[OpenShards]]


class Shards:
    """A ``Channel`` whose other end is in this program.

    Args:
        where: For people.
        namespaces: Settings by name; None: every name has the defaults.
        opening: Opens the storage, for as long as the shards run.
        clock: The clock that tests move, if it is one.
    """

    local = True

    def __init__(
        self, where: str, namespaces: Mapping[str, Policy] | None, opening: Opening, clock: ManualClock | None
    ) -> None:
        self.where = where
        self.trouble: BaseException | None = None
        self._policies: Mapping[str, Policy] = namespaces if namespaces is not None else _Anything()
        self._opening = opening
        self._clock = clock
        self._router = Router((), NOBODY)
        self._bell = Bell()
        self._now_ms: Callable[[], int] = lambda: 0

    # -------------------------------------------------------------------------------------------------------- running

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the shards until cancelled; what they have taken by then is still written.

        Raises:
            RuntimeError: This is not trio.
            StartError: The directory cannot be used.
        """
        if not trio.lowlevel.in_trio_run():
            raise RuntimeError("shards run on trio: embedded and in-memory clients need it")
        async with self._opening() as opened, trio.open_nursery() as nursery:
            self._router = Router(_shards(opened, with_remains(self._policies), self._bell), NOBODY)
            self._bell.on_moved = self._router.lines_moved
            self._now_ms = opened.clock.now_ms
            await nursery.start(_run_to_the_end, self._router)
            if self._clock is not None:
                self._clock.on_advance(self._wake)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._router.close()

    def _wake(self) -> None:
        """Time has moved: every shard has a look at it."""
        for shard in range(len(self._router.shards)):
            self._router.ask(shard, Envelope(Inspect(), _Replies(1), 0))

    # ---------------------------------------------------------------------------------------------------- for callers

    async def exchange(self, flight: Flight) -> Answer:
        """Carry out a call; whatever it is, there is an answer."""
        frame = Protocol[None]().request(encode_body(flight.method, flight.params), None)
        flight.answer = None
        flight.sent(trio.current_time())
        try:
            answer = await self._carry_out(decode(frame))
        except InvalidRequest as error:
            answer = Answer(errors.InvalidRequest(error.code, error.detail, field=error.field))
        except RequestError as error:
            answer = Answer(error_of(str(error)))
        flight.finish(answer)
        return answer

    async def adopt(self, flight: Flight) -> Answer | None:
        """The answer, if it came; a caller that left while it waited is never granted what it waited for."""
        return flight.answer

    async def _carry_out(self, request: Incoming | None) -> Answer:
        if not isinstance(request, Request):
            raise InvalidRequest(request.detail if request is not None else "no request")
        method, members = request.method, request.params
        if method == "ping":
            return Answer(None, {"result": "pong"})
        if method == "batch":
            return Answer(None, await self._batch(members.get("ops")))
        if method == "stuck":
            return Answer(None, await self._stuck(members))
        scope = self._scope(members.pop("namespace", None))
        if method in COMMAND_OPS:
            command = command_from(method, members, scope, Dialect.MSGPACK)
            [answer] = await self._route([command])
            return _told(answer, command)
        if method in _DISPATCHING:
            return await self._dispatching(method, members, scope)
        if method == "policy":
            return Answer(None, policy_body(scope.namespace, scope.policy))
        return await self._question(method, members, scope)

    async def _question(self, method: str, members: dict[str, Any], scope: Scope) -> Answer:
        """What operators ask beside the state table."""
        count = len(self._router.shards)
        if method == "acknowledge":
            shard, query = acknowledge_from(members, scope, Dialect.MSGPACK, count)
            return _told(await self._ask(shard, query), query)
        if method not in _WALKS:
            raise InvalidRequest("unknown method")
        walk = _WALKS[method](members, scope, Dialect.MSGPACK, count)
        while (step := walk.next_query()) is not None:
            page = await self._ask(*step)
            if not isinstance(page, RecordsPage | IncidentsPage):
                return _told(page, step[1])
            walk.take(page)
        return Answer(None, walk.body())

    async def _stuck(self, members: dict[str, Any]) -> dict[str, object]:
        """What is stuck; nobody delivers intents to anywhere here."""
        asked = stuck_from(members, Dialect.MSGPACK)
        shards = range(len(self._router.shards))
        names = set(self._policies)
        if isinstance(self._policies, _Anything):
            # Any name may be there, those of earlier programs too: shards know what they hold.
            for shard in shards:
                answer = await self._ask(shard, Inspect())
                if isinstance(answer, Inspected):
                    names.update(name for (_, name), _ in answer.tallies)
        query = ListStuck(TENANT, tuple(sorted(names)), asked.older_than_ms, asked.limit)
        pages = [await self._ask(shard, query) for shard in shards]
        found = [page if isinstance(page, StuckPage) else None for page in pages]
        return stuck_body(found, asked, self._now_ms(), {})

    async def _dispatching(self, method: str, members: dict[str, Any], scope: Scope) -> Answer:
        """Dispatched operations, and the outbox."""
        dialect = Dialect.MSGPACK
        if method == "outbox.poll":
            return Answer(None, await self._poll(poll_from(members, dialect), scope))
        command: Command
        if method == "outbox.ack":
            command = ack_from(members, scope, dialect)
        elif method == "outbox.nack":
            command = nack_from(members, scope, dialect, self._now_ms())
        elif method == "operation":
            operation_id, wait_ms = operation_from(members, dialect)
            command = Watch(await self._find(operation_id, scope), operation_id, wait_ms)
        else:
            operation_id = cancel_from(members, dialect)
            command = Cancel(await self._find(operation_id, scope), operation_id)
        [answer] = await self._route([command])
        if isinstance(answer, Unknown) and isinstance(command, Watch | Cancel):
            raise no_such_operation()
        return _told(answer, command)

    async def _find(self, operation_id: str, scope: Scope) -> Identity:
        query = FindOperation(scope.tenant, scope.namespace, operation_id)
        found = await find_operation(self._ask, len(self._router.shards), query)
        if isinstance(found, Identity):
            return found
        raise no_such_operation() if found is None else not_now(found)

    async def _poll(self, asked: Poll, scope: Scope) -> dict[str, object]:
        shards = len(self._router.shards)
        haul = await poll(
            self._ask,
            shards,
            wanted_by(asked, scope),
            wait_ms=asked.wait_ms,
            bell=self._bell,
            now_ms=self._now_ms,
            first=0,
            is_over=lambda: False,
        )
        if haul.missing is not None and not haul.answered:
            raise not_now(haul.missing)
        return poll_body(haul.intents, haul.events, Dialect.MSGPACK)

    async def _batch(self, ops: object) -> dict[str, Any]:
        if not isinstance(ops, list) or len(ops) > BATCH_OPS_MAX:
            raise InvalidRequest(f"ops is an array of at most {BATCH_OPS_MAX} calls", field="ops")
        items = [self._item(op) for op in ops]
        for place, error in out_of_line([None if isinstance(i, RequestError) else i for i in items]).items():
            items[place] = error
        commands = [item for item in items if not isinstance(item, RequestError)]
        answers = iter(zip(commands, await self._route(commands), strict=True))
        return {"results": [_item_told(item, answers) for item in items]}

    def _item(self, op: object) -> Command | RequestError:
        """One call of a batch: a command, or why it is none."""
        try:
            if not isinstance(op, dict):
                raise InvalidRequest("a call in a batch is a map", field="ops")
            name = str(op.pop("op", ""))
            return command_from(name, op, self._scope(op.pop("namespace", None)), Dialect.MSGPACK, in_batch=True)
        except RequestError as error:
            return error

    def _scope(self, namespace: object) -> Scope:
        if not isinstance(namespace, str):
            raise InvalidRequest("namespace is missing, or no text", field="namespace")
        try:
            check_namespace(namespace)
            return Scope(TENANT, namespace, self._policies[namespace], operator=True)
        except InvalidNamespace as error:
            raise InvalidRequest(str(error), field="namespace") from None
        except KeyError:
            raise RequestError(Code.UNKNOWN_NAMESPACE, "there is no such namespace") from None

    async def _route(self, commands: Sequence[Command]) -> list[mailbox.Answer]:
        replies = _Replies(len(commands))
        self._router.route([Envelope(command, replies, index) for index, command in enumerate(commands)])
        return await replies.wait()

    async def _ask(self, shard: int, query: Query) -> mailbox.Answer:
        replies = _Replies(1)
        self._router.ask(shard, Envelope(query, replies, 0))
        [answer] = await replies.wait()
        return answer


async def _run_to_the_end(router: Router, *, task_status: trio.TaskStatus[None]) -> None:
    """Shards are not cancelled, they are closed: what they have taken is written first."""
    with trio.CancelScope(shield=True):
        await router.run(task_status=task_status)


def _told(answer: mailbox.Answer, command: Command | Query) -> Answer:
    """An answer as it would leave over a connection."""
    refusal = refusal_of(answer)
    if refusal is not None and refusal.error:
        return Answer(error_of(f"{refusal.code}: {detail_of(answer)}"))
    return Answer(None, body_of(answer, command, operator=True, dialect=Dialect.MSGPACK))


def _item_told(item: Command | RequestError, answers: Iterator[tuple[Command, mailbox.Answer]]) -> dict[str, object]:
    if isinstance(item, RequestError):
        return {"code": item.code, "detail": item.detail}
    command, answer = next(answers)
    refusal = refusal_of(answer)
    if refusal is not None and refusal.error:
        return {"code": refusal.code, "detail": detail_of(answer)}
    return body_of(answer, command, operator=True, dialect=Dialect.MSGPACK)


def _shards(opened: OpenShards, policies: Mapping[str, Policy], bell: Bell) -> list[Shard]:
    census = Census()
    entropy, broom, sequencer = system_entropy(), Broom(), Sequencer(opened.clock.now_us)
    settings = ShardSettings()
    return [
        Shard(number, engine, policies, census, opened.clock, entropy, NOBODY, settings, said, broom, bell, sequencer)
        for number, (engine, said) in enumerate(opened.engines)
    ]


# ------------------------------------------------------------------------------------------------------------- storage


def in_memory(namespaces: Mapping[str, Policy] | None, clock: ManualClock) -> Callable[[], Shards]:
    """Shards that keep nothing, and go by ``clock``."""

    @asynccontextmanager
    async def opening() -> AsyncIterator[OpenShards]:
        engine = MemoryEngine()
        yield OpenShards([(engine, await engine.open())], Clock(time.time_ns() // 1_000_000, clock.now_s))

    return lambda: Shards("memory", namespaces, opening, clock)
