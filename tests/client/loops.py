"""Both event loops in virtual time: when nothing is ready, the clock jumps to whatever is due next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio
import pytest
import trio.testing

T = TypeVar("T")

SOCKETS: Final = "asyncio with sockets"
"""The event loop with connections that it carries by itself, see ``fake.FakeServer.dial``."""

BACKENDS: Final = ("trio", "asyncio", SOCKETS)
VIRTUAL_S_MAX: Final = 3_600
"""A test that waits for longer than this, in its own time, waits for what never comes."""

both_loops = pytest.mark.parametrize("backend", BACKENDS)


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping it lets time pass."""

    jumped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is not None and timeout > 0:
            self.jumped_s += timeout
        return found


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Only jumps count: on a busy machine nothing may take longer than on an idle one."""
        return self._jumping.jumped_s


def run(backend: str, test: Callable[[], Awaitable[T]]) -> T:
    """Run ``test`` in an event loop of its own."""

    async def bounded() -> T:
        with anyio.fail_after(VIRTUAL_S_MAX):
            return await test()

    options: dict[str, Any] = (
        {"clock": trio.testing.MockClock(autojump_threshold=0)} if backend == "trio" else {"loop_factory": _JumpingLoop}
    )
    return anyio.run(bounded, backend="trio" if backend == "trio" else "asyncio", backend_options=options)
