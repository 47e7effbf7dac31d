"""From threads into an event loop that runs in a thread of its own, and back: one hop each way for a call.

anyio's portal does the same for everybody, in two round trips and with a condition variable for each; here a thread
only ever waits for one answer.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio

from idemactor.client.errors import ClientClosed
from idemactor.client.eventloop import Future, running
from idemactor.client.tracing import carry, traceparent

T = TypeVar("T")

_CLOSED = "the client was closed before this was over"


class Pending(Generic[T]):
    """One answer for which a thread waits; the first one that is given counts."""

    __slots__ = ("_error", "_gate", "_result", "done")

    _result: T

    def __init__(self) -> None:
        self.done = False
        self._error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def give(self, result: T) -> None:
        """It went well."""
        if not self.done:
            self._result = result
            self._open()

    def fail(self, error: BaseException) -> None:
        """It did not."""
        if not self.done:
            self._error = error
            self._open()

    def _open(self) -> None:
        self.done = True
        self._gate.release()

    def wait(self) -> T:
        """The result, once it is here; raises what went wrong instead."""
        with self._gate:
            if self._error is not None:
                raise self._error
            return self._result


class Task(Generic[T]):
    """Something that runs in the loop for a thread.

    Args:
        work: What to do.
        midway: What ``work`` answers before it is over, if anything: fails with it.

    Made by the thread that asks, in whose trace it is.
    """

    __slots__ = ("_cancelled", "_midway", "_parent", "_scope", "_work", "over")

    def __init__(self, work: Callable[[], Awaitable[T]], midway: Pending[Any] | None) -> None:
        self.over: Pending[T] = Pending()
        self._work = work
        self._midway = midway
        self._parent = traceparent()
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False

    async def run(self) -> None:
        """Do it, in the loop."""
        carry(self._parent)
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                self.over.give(await self._work())
        except BaseException as error:
            if not isinstance(error, anyio.get_cancelled_exc_class()):
                self.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self.fail(ClientClosed(_CLOSED))  # Where it neither went well nor wrong, it was cancelled.

    def fail(self, error: BaseException) -> None:
        """It came to nothing, unless it is over."""
        self.over.fail(error)
        if self._midway is not None:
            self._midway.fail(error)

    def cancel(self) -> None:
        """Nobody waits any more; in the loop."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()


class Bridge:
    """Made in the event loop that it leads into; ``serve`` must be running there."""

    def __init__(self) -> None:
        self._loop = running()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._orders: deque[Callable[[], object]] = deque()
        self._more: Future[None] = self._loop.future()
        self._open: set[Task[Any]] | None = set()
        self._stopping = False

    # -------------------------------------------------------------------------------------------------- in the loop

    async def serve(self, ready: Callable[[], None]) -> None:
        """Run what threads ask for until ``stop``; what is not over then is cancelled."""
        try:
            async with anyio.create_task_group() as self._tasks:
                ready()
                while not self._stopping:
                    await self._more
                    self._more = self._loop.future()
                    while self._orders:
                        self._orders.popleft()()
                self._tasks.cancel_scope.cancel()
        finally:
            with self._lock:
                left, self._open = self._open or set(), None
            for task in left:
                task.fail(ClientClosed(_CLOSED))

    def _look(self) -> None:
        if not self._more.done():
            self._more.set_result(None)

    def _begin(self, task: Task[Any]) -> None:
        self._tasks.start_soon(self._run, task)

    async def _run(self, task: Task[Any]) -> None:
        try:
            await task.run()
        finally:
            with self._lock:
                if self._open is not None:
                    self._open.discard(task)

    def _end(self) -> None:
        self._stopping = True

    # ------------------------------------------------------------------------------------------------- from a thread

    def start(self, work: Callable[[], Awaitable[T]], midway: Pending[Any] | None = None) -> Task[T]:
        """Have ``work`` done in the loop, see ``Task``.

        Raises:
            ClientClosed: The loop has ended.
            RuntimeError: This is the loop's own thread, which must not wait for itself.
        """
        if threading.get_ident() == self._thread:
            raise RuntimeError("the client's own thread must not wait for itself: use the async client there")
        task = Task(work, midway)
        with self._lock:
            if self._open is None:
                raise ClientClosed(_CLOSED)
            self._open.add(task)
            self._order(functools.partial(self._begin, task))
        return task

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` returns, or raises, in the loop."""
        task = self.start(work)
        try:
            return task.over.wait()
        except BaseException:
            # Ctrl-C comes here, not there: what nobody waits for any more is cancelled, and so given back.
            if not task.over.done:
                self.soon(task.cancel)
            raise

    def soon(self, action: Callable[[], object]) -> None:
        """Have ``action`` done in the loop, without waiting; not at all where the loop has ended."""
        with self._lock:
            if self._open is not None:
                self._order(action)

    def _order(self, action: Callable[[], object]) -> None:
        self._orders.append(action)
        if len(self._orders) == 1:  # Else the loop was told already, and has not looked yet.
            self._loop.call_soon_from_thread(self._look)

    def stop(self) -> None:
        """End ``serve``."""
        self.soon(self._end)
