"""What both doors do once they know who asks: batches, listings, incidents, inspections, over one router.

Nothing here knows how a request came or how its answer leaves.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from idemactor.core.commands import Command
from idemactor.core.limits import BATCH_OPS_MAX
from idemactor.core.queries import (
    Acknowledged,
    IncidentsPage,
    Inspect,
    Inspected,
    NoSuchIncident,
    Query,
    RecordsPage,
)
from idemactor.core.replies import Overloaded, Unavailable
from idemactor.errors import InvalidRequest, RequestError
from idemactor.observability.merge import merged
from idemactor.observability.metrics import ShardStanding
from idemactor.server.audited import audited
from idemactor.server.auth import Principal, Role, forbidden, unauthenticated
from idemactor.server.backlog import Hold
from idemactor.server.context import ServerContext
from idemactor.server.sinks import Replies
from idemactor.server.tracing import Parent
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.tracing import traced
from idemactor.wire.answers import body_of, policy_body
from idemactor.wire.calls import KEY
from idemactor.wire.fields import text_reader
from idemactor.wire.intents import out_of_line
from idemactor.wire.listings import Walk, acknowledge_from, incidents_walk, records_walk
from idemactor.wire.problems import problem
from idemactor.wire.refusals import detail_of, refusal_of
from idemactor.wire.requests import Dialect, Scope, command_from, members_of, resolved_from
from idemactor.wire.requests import Members as MemberTable
from idemactor.wire.sourced import key_body

INSPECT_MS_MAX: Final = 1_000
"""How long a shard may take to say how it stands, for ``/metrics`` and ``/readyz``."""

QUESTION_MS_MAX: Final = 10_000
"""How long a shard may take to answer what an operator asks; its process may hang, and nobody would ever know."""

QUESTION_RETRY_MS: Final = 1_000
"""When an operator may ask again that was not answered."""

_MS_PER_S: Final = 1_000
_ACQUIRING: Final = frozenset({"reserve", "accept", "dispatch"})

Members = Mapping[str, object]
Question = Callable[[Hold], Awaitable[dict[str, object]]]
"""Asks shards, one after the other, and gives the members of the answer; it counts with the hold until it is sent."""

RESULTS: Final = "results"
"""The member of a batch's answer."""


# ---------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class Asked:
    """Who gives commands.

    Attributes:
        who: The name of their token, for the audit log; None: nobody who could do what only operators may.
        request: What the commands are traced as a part of.
        hold: Where their outcomes count from the answers on; None: those are taken for sent.
    """

    who: str | None = None
    request: Parent | None = None
    hold: Hold | None = None


NOBODY: Final = Asked()


async def carry_out(
    context: ServerContext, commands: Sequence[Command], handed_over: trio.Event, asked: Asked = NOBODY
) -> list[Answer]:
    """Send commands to their shards and wait for all the answers.

    Args:
        commands: In order.
        handed_over: Set once nothing takes the commands back any more: before the first checkpoint in here.
        asked: Who gives them.
    """
    dialect = Dialect.MSGPACK if asked.hold is None else asked.hold.dialect
    replies = Replies(len(commands), backlog=context.backlog, dialect=dialect)
    context.router.route(_envelopes(context, commands, replies, asked))
    handed_over.set()
    return await replies.wait(asked.hold)


def _envelopes(context: ServerContext, commands: Sequence[Command], replies: Replies, asked: Asked) -> list[Envelope]:
    """The commands, tagged by their order."""
    envelopes = [Envelope(command, replies, index) for index, command in enumerate(commands)]
    if asked.who is not None:
        envelopes = [audited(context.audit, asked.who, envelope) for envelope in envelopes]
    if asked.request is None:
        return envelopes
    request = asked.request
    pairs = zip(envelopes, commands, strict=True)
    return [traced(envelope, request.command(command)) for envelope, command in pairs]


def refusal_members(code: str, detail: str, *, field: str | None = None, acquiring: bool) -> dict[str, object]:
    """What stands in a batch in the place of a call that never reached the table of states.

    Args:
        code: What callers branch on.
        detail: One sentence for people.
        field: What is at fault, where that has a name.
        acquiring: Whether to say that its caller may not go on.
    """
    members: dict[str, object] = {"code": code, "detail": detail}
    if field is not None:
        members["field"] = field
    if acquiring:
        members["proceed"] = False
    return members


@dataclass(frozen=True, slots=True)
class _Item:
    """One call of a batch: a command, or why it is none."""

    op: str
    command: Command | None
    error: RequestError | None
    is_operator: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that came together. A convenience and no transaction: each succeeds or fails by itself."""

    who: str | None
    _items: tuple[_Item, ...]
    _dialect: Dialect

    @classmethod
    def read(cls, context: ServerContext, principal: Principal | None, members: Members, dialect: Dialect) -> Batch:
        """The batch that ``members`` are; a mistake in one of its calls is found in its place.

        Raises:
            RequestError: UNAUTHENTICATED, or INVALID_REQUEST for what is no batch at all.
        """
        if principal is None:
            raise unauthenticated()
        if principal.role is Role.METRICS:
            raise forbidden("this token only reads metrics")
        ops = members.get("ops")
        if not isinstance(ops, list):
            raise InvalidRequest("ops is an array of calls", field="ops")
        unknown = next((name for name in members if name != "ops"), None)
        if unknown is not None:
            raise InvalidRequest("a batch has ops and nothing else", field=unknown)
        if len(ops) > BATCH_OPS_MAX:
            raise InvalidRequest(f"a batch has at most {BATCH_OPS_MAX} calls", field="ops")
        items = [_read_item(context, principal, op, dialect) for op in ops]
        for place, error in out_of_line([item.command for item in items]).items():
            items[place] = replace(items[place], command=None, error=error)
        return cls(principal.who if principal.is_operator else None, tuple(items), dialect)

    @property
    def commands(self) -> list[Command]:
        """What goes to the shards, in order."""
        return [item.command for item in self._items if item.command is not None]

    @property
    def errors(self) -> list[RequestError]:
        """What does not."""
        return [item.error for item in self._items if item.error is not None]

    def envelopes(self, context: ServerContext, replies: Replies, request: Parent | None = None) -> list[Envelope]:
        """The commands, tagged by their order, and traced as a part of ``request``."""
        return _envelopes(context, self.commands, replies, Asked(self.who, request))

    def body(self, answers: Sequence[Answer]) -> dict[str, object]:
        """The members of the answer; ``answers`` are those of ``commands``, in order."""
        return {RESULTS: list(self.results(answers))}

    def results(self, answers: Sequence[Answer]) -> Iterator[dict[str, object]]:
        """What the answer lists, each made when it is wanted; see ``body``."""
        rest = iter(answers)
        return (self._told(item, None if item.error else next(rest)) for item in self._items)

    def _told(self, item: _Item, answer: Answer | None) -> dict[str, object]:
        """One result: the members of the single call's answer, or ``code`` and ``detail``."""
        acquiring = self._dialect is Dialect.JSON and item.op in _ACQUIRING
        if item.error is not None:
            error = item.error
            return refusal_members(error.code, error.detail, field=error.field, acquiring=acquiring)
        assert answer is not None
        assert item.command is not None
        refusal = refusal_of(answer)
        if refusal is not None and refusal.error:
            return refusal_members(refusal.code, detail_of(answer), acquiring=acquiring)
        members = body_of(answer, item.command, operator=item.is_operator, dialect=self._dialect)
        if refusal is None or self._dialect is Dialect.MSGPACK:
            return members
        return problem(refusal.status, refusal.code, detail_of(answer), title=refusal.title, members=members)


def _read_item(context: ServerContext, principal: Principal, op: object, dialect: Dialect) -> _Item:
    name = ""
    try:
        if not isinstance(op, dict):
            raise InvalidRequest("a call in a batch is an object", field="ops")
        members = dict(op)
        name = _text(members, "op", dialect)
        scope = context.authenticator.scope(principal, _text(members, "namespace", dialect), name)
        command = command_from(name, members, scope, dialect, in_batch=True)
        return _Item(name, command, None, scope.operator)
    except RequestError as error:
        return _Item(name, None, error, False)


def _text(members: dict[str, object], name: str, dialect: Dialect) -> str:
    found = text_reader(dialect)(members.pop(name, None))
    if found is None:
        raise InvalidRequest(f"{name} is missing, or no text", field=name)
    return found


# --------------------------------------------------------------------------------------------------------- questions


def shards(context: ServerContext, principal: Principal | None) -> dict[str, object]:
    """The shard map.

    Raises:
        RequestError: UNAUTHENTICATED or FORBIDDEN.
    """
    if principal is None:
        raise unauthenticated()
    if principal.role is Role.METRICS:
        raise forbidden("this token only reads metrics")
    return context.shard_map.body(principal.tenant)


def policy(scope: Scope) -> dict[str, object]:
    """The published expiry policy of a namespace."""
    return policy_body(scope.namespace, scope.policy)


_KEY_MEMBERS: Final = {dialect: MemberTable(KEY, dialect) for dialect in Dialect}


def key(scope: Scope, members: Members, dialect: Dialect) -> dict[str, object]:
    """A dry run: the key that a reserve with the same source and request would have, and what it stands for.

    Raises:
        InvalidRequest: The one that such a reserve would get.
        RequestError: UNAUTHENTICATED, as such a reserve.
    """
    return key_body(resolved_from(members_of(_KEY_MEMBERS[dialect], members), scope))


def records(context: ServerContext, scope: Scope, members: Members, dialect: Dialect) -> Question:
    """A page of records. Raises: InvalidRequest."""
    walk = records_walk(members, scope, dialect, len(context.router.shards))
    return lambda hold: _walk(context, walk, hold)


def incidents(context: ServerContext, scope: Scope, members: Members, dialect: Dialect) -> Question:
    """A page of incidents. Raises: InvalidRequest."""
    walk = incidents_walk(members, scope, dialect, len(context.router.shards))
    return lambda hold: _walk(context, walk, hold)


def acknowledge(context: ServerContext, scope: Scope, members: Members, dialect: Dialect) -> Question:
    """Acknowledging an incident. Raises: RequestError: INVALID_REQUEST or NOT_FOUND."""
    shard, query = acknowledge_from(members, scope, dialect, len(context.router.shards))

    async def ask(_hold: Hold) -> dict[str, object]:
        note = functools.partial(context.audit.happened, scope.who, "acknowledge")
        where: dict[str, Any] = {"tenant": scope.tenant, "namespace": scope.namespace, "incident": members.get("id")}
        try:
            answer = await _ask(context, shard, query)
        except RequestError as error:
            note(error.code.value, **where)
            raise
        note("acknowledged", **where)
        assert isinstance(answer, Acknowledged)
        return body_of(answer, query, operator=True, dialect=dialect)

    return ask


QUESTIONS: Final[Mapping[str, Callable[[ServerContext, Scope, Members, Dialect], Question]]] = {
    "records": records,
    "incidents": incidents,
    "acknowledge": acknowledge,
}
"""What operators ask beside the state table, by name."""


async def _walk(context: ServerContext, walk: Walk, hold: Hold) -> dict[str, object]:
    """A page may span shards: each is asked for what the page still lacks."""
    while (step := walk.next_query()) is not None:
        answer = await _ask(context, *step, hold)
        assert isinstance(answer, RecordsPage | IncidentsPage)
        walk.take(answer)
    return walk.body()


async def ask_shard(context: ServerContext, shard: int, query: Query, hold: Hold | None = None) -> Answer:
    """The answer of one shard; ``Unavailable`` where it does not come in ``QUESTION_MS_MAX``.

    Args:
        hold: Where a page counts that carries outcomes; ``Overloaded`` where there is no room for it.
    """
    replies = Replies(1, backlog=context.backlog)
    context.router.ask(shard, Envelope(query, replies, 0))
    with trio.move_on_after(QUESTION_MS_MAX / _MS_PER_S):
        await replies.wait(hold)
    return replies.answers[0] if replies.complete else Unavailable(QUESTION_RETRY_MS)


async def _ask(context: ServerContext, shard: int, query: Query, hold: Hold | None = None) -> Answer:
    """The answer of one shard, see ``ask_shard``.

    Raises:
        RequestError: NOT_FOUND, OVERLOADED, or UNAVAILABLE, also where it does not come in ``QUESTION_MS_MAX``.
    """
    answer = await ask_shard(context, shard, query, hold)
    refusal = refusal_of(answer)
    if refusal is not None:
        assert isinstance(answer, NoSuchIncident | Overloaded | Unavailable)
        retry_ms = None if isinstance(answer, NoSuchIncident) else answer.retry_after_ms
        raise RequestError(refusal.code, detail_of(answer), retry_after_ms=retry_ms)
    return answer


# -------------------------------------------------------------------------------------------------------- inspection


async def inspect_shards(context: ServerContext) -> list[ShardStanding]:
    """How every shard stands; one that does not say so within ``INSPECT_MS_MAX`` stands without its own words.

    All are asked at once, so that slow ones do not add up.
    """
    answers = await ask_all(context, Inspect(), INSPECT_MS_MAX)
    return [
        ShardStanding(
            number=shard.number,
            queue_depth=shard.queue_depth,
            quarantined=shard.quarantined,
            in_memory=shard.in_memory,
            inspected=answer if isinstance(answer, Inspected) else None,
        )
        for shard, answer in zip(context.router.shards, answers, strict=True)
    ]


async def ask_all(context: ServerContext, query: Query, within_ms: int) -> list[Answer | None]:
    """What every shard says to a query, in order; None: nothing within that time. All are asked at once."""
    replies = [Replies(1) for _ in context.router.shards]
    for shard, reply in enumerate(replies):
        context.router.ask(shard, Envelope(query, reply, 0))
    with trio.move_on_after(within_ms / _MS_PER_S):
        for reply in replies:
            await reply.wait()
    for reply in replies:
        # A shard that has not begun with it need not.
        reply.closed = not reply.complete
    return [reply.answers[0] if reply.complete else None for reply in replies]


async def exposition(context: ServerContext, principal: Principal) -> bytes:
    """The metrics: of this process, or of all workers. A tenant's operator is told of no other tenant's keys."""
    standings = await inspect_shards(context)
    if principal.sees_tenants is not None:
        standings = [_of_tenant(standing, principal.sees_tenants) for standing in standings]
    if context.reports is None:
        return context.metrics.render(standings, context.now_ms())
    return merged(await context.reports(), standings, context.now_ms())


def _of_tenant(standing: ShardStanding, tenant: str) -> ShardStanding:
    if standing.inspected is None:
        return standing
    tallies = tuple((key, tally) for key, tally in standing.inspected.tallies if key[0] == tenant)
    outbox = tuple(count for count in standing.inspected.outbox if count.tenant == tenant)
    in_doubt = tuple((key, at) for key, at in standing.inspected.oldest_in_doubt_at if key[0] == tenant)
    mine = replace(standing.inspected, tallies=tallies, outbox=outbox, oldest_in_doubt_at=in_doubt)
    return replace(standing, inspected=mine)
