"""What both doors do about dispatched operations and the outbox, beyond single commands (contract, 15).

An operation's id does not say which shard it is in, and what a service may fetch is in all of them.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TypeAlias

import trio

from idemactor.core.commands import Cancel, Command, Watch
from idemactor.core.keys import Identity
from idemactor.core.queries import FindOperation
from idemactor.core.replies import Overloaded, Unavailable, Unknown, Untold
from idemactor.errors import RequestError
from idemactor.server.backlog import Hold
from idemactor.server.context import ServerContext
from idemactor.server.operations import Asked, ask_shard, carry_out
from idemactor.server.tracing import Parent
from idemactor.shard import errands
from idemactor.shard.mailbox import OVERLOADED_RETRY_MS, Answer
from idemactor.wire.fields import Dialect
from idemactor.wire.outbox import Poll, no_such_operation, poll_body
from idemactor.wire.requests import Scope

Settled: TypeAlias = tuple[Answer, Command]
"""An answer, and what was asked in the end."""


async def operation(
    context: ServerContext,
    scope: Scope,
    operation_id: str,
    wait_ms: int,
    request: Parent | None = None,
    hold: Hold | None = None,
) -> Settled:
    """How an operation stands; waits for its end at most ``wait_ms``.

    Args:
        request: What it is traced as a part of.
        hold: Where its outcome counts until it is sent; None: somebody else sees to that.

    Raises:
        RequestError: NOT_FOUND, or why a shard could not answer that may have it.
    """
    identity = await _find(context, scope, operation_id)
    asked = Asked(request=request, hold=hold)
    return await _settle(context, Watch(identity, operation_id, wait_ms), trio.Event(), asked)


async def cancel(
    context: ServerContext, scope: Scope, operation_id: str, handed_over: trio.Event, request: Parent | None = None
) -> Settled:
    """Take an operation back, see ``Cancel``; ``handed_over`` is set once nothing takes that back any more.

    Raises:
        RequestError: As ``operation``.
    """
    try:
        identity = await _find(context, scope, operation_id)
    except RequestError as error:
        # No command comes of it that would be noted on its way, and an operator tried all the same.
        if scope.operator:
            note = partial(context.audit.happened, scope.who, "cancel", error.code.value)
            note(tenant=scope.tenant, namespace=scope.namespace, operation_id=operation_id)
        raise
    # Whoever dispatched it may take it back, too: that is no operator's doing.
    asked = Asked(scope.who if scope.operator else None, request)
    return await _settle(context, Cancel(identity, operation_id), handed_over, asked)


async def poll(context: ServerContext, scope: Scope, asked: Poll, dialect: Dialect) -> dict[str, object]:
    """The members of what was taken.

    Raises:
        RequestError: No shard could answer, or nothing large is told to anybody.
    """
    if context.backlog.full:
        # Nothing is taken that could not be told.
        context.backlog.on_refused(1)
        raise errands.not_now(Overloaded(OVERLOADED_RETRY_MS, Untold.NOT_KEPT))
    shards = len(context.router.shards)
    haul = await errands.poll(
        partial(ask_shard, context),
        shards,
        errands.wanted_by(asked, scope),
        wait_ms=asked.wait_ms,
        bell=context.bell,
        now_ms=context.now_ms,
        first=random.randrange(shards),
        is_over=lambda: context.draining,
    )
    if haul.missing is not None and not haul.answered:
        raise errands.not_now(haul.missing)
    return poll_body(haul.intents, haul.events, dialect)


async def _find(context: ServerContext, scope: Scope, operation_id: str) -> Identity:
    query = FindOperation(scope.tenant, scope.namespace, operation_id)
    found = await errands.find_operation(partial(ask_shard, context), len(context.router.shards), query)
    match found:
        case Identity():
            return found
        case None:
            raise no_such_operation()
        case Overloaded() | Unavailable():
            raise errands.not_now(found)


async def _settle(context: ServerContext, command: Command, handed_over: trio.Event, asked: Asked) -> Settled:
    [answer] = await carry_out(context, [command], handed_over, asked)
    if isinstance(answer, Unknown):
        # It was there a moment ago.
        raise no_such_operation()
    return answer, command
