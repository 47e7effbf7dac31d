"""Something that is being settled in the background, as whoever waits for it sees it."""

from __future__ import annotations

from typing import Any

import anyio

from idemactor.client.errors import IdemactorClientError


class Settlement:
    """Something that is being settled; it is ``over`` once ``error`` or ``result`` says how it went.

    ``idle`` while there is nothing to settle unless the server grants what its caller no longer waits for, which it
    never does once the connection is closed (contract, section 3, rule 6).
    """

    __slots__ = ("_changed", "error", "idle", "over", "result")

    def __init__(self) -> None:
        self.over = False
        self.idle = False
        self.error: IdemactorClientError | None = None
        self.result: Any = None
        self._changed: anyio.Event | None = None

    def change(self, *, over: bool = False, idle: bool = False) -> None:
        """It goes on, or is over."""
        self.over, self.idle = over, idle
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    async def until_over(self) -> None:
        """Return once it is over."""
        while not self.over:
            await self._change()

    async def until_calm(self) -> None:
        """Return once it is over, or idle."""
        while not (self.over or self.idle):
            await self._change()

    async def wait_shortly(self, cleanup_ms: int) -> None:
        """Wait until it is over, whatever is cancelled around, but not for long."""
        with anyio.move_on_after(cleanup_ms / 1000, shield=True):
            await self.until_over()

    async def _change(self) -> None:
        self._changed = self._changed or anyio.Event()
        await self._changed.wait()
