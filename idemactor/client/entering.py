"""Asking for the key of a hold, until it is free or the waiting is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from idemactor.client.errors import InFlightError, OutOfService
from idemactor.client.params import Acquisition
from idemactor.client.results import Completed, Reserved
from idemactor.core.limits import UNAVAILABLE_AFTER_MS_DEFAULT, WAIT_MS_MAX
from idemactor.core.policy import OnUnavailable
from idemactor.core.values import slotted

if TYPE_CHECKING:
    from idemactor.client.holding import Holding

REPEAT_WAIT_MS: Final = 250
"""The pause before waiting anew where a server answered before the wait was over (it is about to stop)."""


@slotted
class HoldOptions:
    """How a hold behaves; times in milliseconds."""

    wait_ms: int | None
    not_executed: tuple[type[BaseException], ...]
    on_lost: Literal["cancel", "tell"]
    on_unavailable: OnUnavailable | None
    unavailable_after_ms: int | None
    timeout_ms: int


Asked = tuple[Reserved | Completed | None, float]
"""What the server said, None where nobody could be asked, and when it was asked, by the lease clock."""


async def ask_for(client: Holding, acquisition: Acquisition, options: HoldOptions) -> Asked:
    """Acquire the key of a hold.

    Raises:
        Refused: The server said no.
        OutOfService: Nobody could be asked, and the hold is not to go on unprotected.
    """
    namespace = acquisition.params["namespace"]
    if _mode(client, namespace, options) is not OnUnavailable.OPEN:
        return await _reserve(client, acquisition, options.wait_ms, options.timeout_ms)
    try:
        return await _reserve(client, acquisition, options.wait_ms, _unavailable_after_ms(client, namespace, options))
    except OutOfService:
        return None, 0.0


def _mode(client: Holding, namespace: str, options: HoldOptions) -> OnUnavailable:
    """The caller's own setting, else the namespace's as last fetched, else closed (contract, section 10)."""
    if options.on_unavailable is not None:
        return options.on_unavailable
    policy = client.known_policy(namespace)
    return policy.on_unavailable if policy is not None else OnUnavailable.CLOSED


def _unavailable_after_ms(client: Holding, namespace: str, options: HoldOptions) -> int:
    if options.unavailable_after_ms is not None:
        return options.unavailable_after_ms
    policy = client.known_policy(namespace)
    return policy.unavailable_after_ms if policy is not None else UNAVAILABLE_AFTER_MS_DEFAULT


async def _reserve(client: Holding, acquisition: Acquisition, wait_ms: int | None, budget_ms: int) -> Asked:
    """Ask until the key is free or the waiting is over."""
    clock = client.lease_clock
    end_s = None if wait_ms is None else clock.now_s() + wait_ms / 1000
    while True:
        asked_s = clock.now_s()
        left_ms = WAIT_MS_MAX if end_s is None else max(0, round((end_s - asked_s) * 1000))
        try:
            return await client._acquire(acquisition, min(left_ms, WAIT_MS_MAX), budget_ms), asked_s
        except InFlightError as error:
            now_s = clock.now_s()
            if end_s is not None and now_s >= end_s:
                raise
            pause_s = min(error.retry_after_ms, REPEAT_WAIT_MS) / 1000
            await clock.sleep_until(now_s + pause_s if end_s is None else min(now_s + pause_s, end_s))
