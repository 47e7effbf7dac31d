"""What a call needs of the event loop it runs in, as light as the loop itself has it.

A call is sent and waits for one answer. The loop's own future is all that takes: events, scopes and semaphores that
work the same everywhere cost more than everything else that a call does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import trio

T = TypeVar("T")


class Future(Protocol[T]):
    """Where one task waits for one value; cancelling the task ends the waiting."""

    def done(self) -> bool:
        """Whether nobody waits any more: the value is here, or who waited is cancelled."""

    def set_result(self, value: T, /) -> None:
        """The value; must not be ``done``."""

    def __await__(self) -> Generator[Any, Any, T]: ...


@dataclass(frozen=True, slots=True)
class EventLoop:
    """The running one.

    Attributes:
        now_s: Its clock, seconds.
        future: Makes a future.
        call_soon_from_thread: Has the loop call something, from any thread, without waiting for it.
        asyncio: The loop where it is asyncio's, which can also be told what to do once without a task; else None.
    """

    now_s: Callable[[], float]
    future: Callable[[], Future[Any]]
    call_soon_from_thread: Callable[..., object]
    asyncio: asyncio.AbstractEventLoop | None


def running() -> EventLoop:
    """The event loop that runs this task.

    Raises:
        RuntimeError: None does.
    """
    # Where trio was never imported, nothing runs on it, and an asyncio program need not pay for the import.
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_task():
            return EventLoop(trio.current_time, _TrioFuture, trio.lowlevel.current_trio_token().run_sync_soon, None)
    loop = asyncio.get_running_loop()
    return EventLoop(loop.time, loop.create_future, loop.call_soon_threadsafe, loop)


class _TrioFuture(Generic[T]):
    """A future as asyncio has it, on trio; a task that waits for it is a step of trio's own."""

    __slots__ = ("_done", "_task", "_value")

    _value: T

    def __init__(self) -> None:
        self._done = False
        self._task: trio.lowlevel.Task | None = None

    def done(self) -> bool:
        return self._done

    def set_result(self, value: T, /) -> None:
        import trio

        self._done = True
        self._value = value
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)

    def __await__(self) -> Generator[Any, Any, T]:
        import trio

        if not self._done:
            self._task = trio.lowlevel.current_task()
            waiting = trio.lowlevel.wait_task_rescheduled(self._abort)  # noqa: ASYNC105 - This is what `await` does.
            yield from waiting.__await__()
        return self._value

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        import trio

        self._done = True
        return trio.lowlevel.Abort.SUCCEEDED
