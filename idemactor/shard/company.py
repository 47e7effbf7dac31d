"""Whether a process serves several tenants, so that each has to be spared the others' large pieces of work."""

from __future__ import annotations

import math
from typing import Final

import trio

ALONE_AFTER_S: Final = 60.0
"""How long only one tenant has to be heard before it counts as alone: large pieces of work save a little of its time,
and would cost somebody who comes back the wait for one."""


class Company:
    """Hears who asks. Not thread-safe: one event loop owns it.

    Attributes:
        latest: The tenant that was heard last; None before anybody was.
    """

    __slots__ = ("_shared_until", "latest")

    def __init__(self) -> None:
        self.latest: str | None = None
        self._shared_until = -math.inf

    def heard(self, tenant: str) -> None:
        """A command of ``tenant`` came. Need not be told of another one of the ``latest``."""
        if self.latest is not None and tenant != self.latest:
            self._shared_until = trio.current_time() + ALONE_AFTER_S
        self.latest = tenant

    @property
    def shared(self) -> bool:
        """Whether more than one tenant was heard lately."""
        return self._shared_until > 0 and trio.current_time() < self._shared_until
