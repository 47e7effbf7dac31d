"""Whether a process serves several tenants, so that each has to be spared the others' large pieces of work.

A shard that has to answer somebody who asks for little, beside somebody who asks for more than can be done at once, is
*pressed*: the loop is one for all shards, and for as long as that takes the others do not begin anything large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio

ALONE_AFTER_S: Final = 60.0
"""How long only one tenant has to be heard before it counts as alone: large pieces of work save a little of its time,
and would cost somebody who comes back the wait for one."""

HURRY_S: Final = 1.0
"""For how long after a shard was pressed pieces of work are smaller still: whoever asked for little will again."""

GIVE_WAY_S: Final = 0.002
"""How long a shard gives way to those that are pressed, at most, before it has its own turn: so whoever asks for much
is served all the same, however many ask for little."""


class Company:
    """Hears who asks. Not thread-safe: one event loop owns it.

    Attributes:
        latest: The tenant that was heard last; None before anybody was.
        glances: What looks whether somebody who asks for little has said something. Must neither block nor raise.
    """

    __slots__ = ("_giving_way", "_hurried_until", "_pressed", "_shared_until", "glances", "latest")

    def __init__(self) -> None:
        self.latest: str | None = None
        self.glances: list[Callable[[], None]] = []
        self._pressed: set[int] = set()
        self._hurried_until = -math.inf
        self._giving_way = trio.lowlevel.ParkingLot()
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

    @property
    def pressed(self) -> bool:
        """Whether any shard is pressed."""
        return bool(self._pressed)

    @property
    def hurried(self) -> bool:
        """Whether any shard was pressed lately."""
        return self._hurried_until > 0 and trio.current_time() < self._hurried_until

    def press(self, shard: int) -> None:
        """Somebody who asks for little waits for ``shard``."""
        self._pressed.add(shard)
        self._hurried_until = trio.current_time() + HURRY_S

    def relax(self, shard: int) -> None:
        """Nobody does any more. Harmless where nobody did."""
        if shard in self._pressed:
            self._pressed.remove(shard)
            if not self._pressed:
                self._giving_way.unpark_all()

    def glance(self) -> None:
        """Between two pieces of work: hear whoever asks for little, who would be read only after all of a round's."""
        if self.hurried:
            for glance in self.glances:
                glance()

    async def give_way(self) -> None:
        """Until no shard is pressed, at most ``GIVE_WAY_S``."""
        with trio.move_on_after(GIVE_WAY_S):
            await self._giving_way.park()
