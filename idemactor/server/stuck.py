"""What is stuck, over all shards: asked of all of them at once, and told without those that do not answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from idemactor.core.queries import ListStuck, StuckPage
from idemactor.server.auth import Principal, Role, forbidden, unauthenticated
from idemactor.server.context import ServerContext
from idemactor.server.operations import ask_all
from idemactor.wire.fields import Dialect
from idemactor.wire.stuck import Asked, stuck_body, stuck_from

STUCK_MS_MAX: Final = 2_000
"""How long shards may take; whoever asks is in a hurry, and those that hang are a part of the answer."""


def stuck(
    context: ServerContext, principal: Principal | None, members: Mapping[str, object], dialect: Dialect
) -> Callable[[], Awaitable[dict[str, object]]]:
    """What asks the shards, for an operator: about the namespaces of its token.

    Raises:
        RequestError: UNAUTHENTICATED, FORBIDDEN or INVALID_REQUEST.
    """
    if principal is None:
        raise unauthenticated()
    if not principal.is_operator:
        only_metrics = principal.role is Role.METRICS
        raise forbidden("this token only reads metrics" if only_metrics else "this call is for operators")
    asked = stuck_from(members, dialect)
    query = ListStuck(principal.tenant, tuple(sorted(principal.scopes)), asked.older_than_ms, asked.limit)
    return lambda: _ask(context, query, asked)


async def _ask(context: ServerContext, query: ListStuck, asked: Asked) -> dict[str, object]:
    answers = await ask_all(context, query, STUCK_MS_MAX)
    pages = [answer if isinstance(answer, StuckPage) else None for answer in answers]
    return stuck_body(pages, asked, context.now_ms(), context.destinations)
