"""Tells a shard how an attempt ended, for as long as the attempt's lease lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from idemactor.core.commands import Commit, Doubt, Postpone, Release
from idemactor.core.replies import AlreadyCommitted, InDoubt, Overloaded, Stale, Unavailable, Unknown
from idemactor.dispatch.limits import SETTLE_REST_MS, SETTLE_REST_MS_MAX
from idemactor.dispatch.shards import Shards
from idemactor.observability.logs import log_event

_MS_PER_S: Final = 1_000
_log = logging.getLogger(__name__)


async def settle(
    shards: Shards, ending: Commit | Release | Doubt | Postpone, until: int, now_ms: Callable[[], int]
) -> bool:
    """Whether the shard knows; what it could not be told before ``until`` is left to the lapse of the lease.

    Args:
        until: The end of the lease, milliseconds since the epoch. It is told once at least.
    """
    what, rest_ms = type(ending).__name__.lower(), SETTLE_REST_MS
    while True:
        answer = await shards.tell(ending)
        if not isinstance(answer, Overloaded | Unavailable):
            if isinstance(answer, Stale | Unknown | AlreadyCommitted | InDoubt):
                # Somebody settled it meanwhile, or its lease was over: the token decides, and nothing is lost.
                found = type(answer).__name__.lower()
                log_event(_log, logging.ERROR, "delivery_told_too_late", what=what, found=found)
                return False
            return True
        left_ms = until - now_ms()
        if left_ms <= 0:
            log_event(_log, logging.ERROR, "delivery_gave_up_telling", what=what)
            return False
        await trio.sleep(min(rest_ms, left_ms) / _MS_PER_S)
        rest_ms = min(2 * rest_ms, SETTLE_REST_MS_MAX)
