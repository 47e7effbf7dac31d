"""The same client for programs without an event loop: scripts, Django, Celery. One core, and this is its second shell.

    with Client("127.0.0.1:8788") as client:
        with client.hold("trade", key, payload=order) as hold:
            ...

Every method is the async one, called in a thread of the client's own that runs an event loop; the signatures are taken
from there. Any number of threads may use one client. It opens at its first use, so that it may stand in a module; in a
forked child it opens anew, with a connection of its own.

A thread cannot be cancelled, so that a lost lease only tells the body: see ``hold.lost.is_set()`` and ``hold.check()``.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, cast

import anyio

from idemactor.client import client as aio
from idemactor.client.bridge import Bridge, Pending
from idemactor.client.hold import Hold
from idemactor.client.once import HELD, HoldArguments, Once, check_function, from_json, to_json

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Backend = Literal["asyncio", "trio"]
"""Which event loop runs in the client's thread: the one that carries a socket with the least ado, or the one that can
also run shards."""


def _constructing(
    of: Callable[P, aio.Client],
) -> Callable[[Callable[[Client, Callable[[], aio.Client]], None]], Callable[Concatenate[Client, P], None]]:
    """Give ``__init__`` the signature of ``of``; what it is handed makes the async client."""

    def decorate(
        inside: Callable[[Client, Callable[[], aio.Client]], None],
    ) -> Callable[Concatenate[Client, P], None]:
        @functools.wraps(aio.Client.__init__)
        def init(self: Client, /, *arguments: P.args, **named: P.kwargs) -> None:
            inside(self, lambda: of(*arguments, **named))

        return init

    return decorate


def _making(of: Callable[P, aio.Client]) -> Callable[P, Client]:
    """A client that is made by ``of``."""

    @functools.wraps(of)
    def make(*arguments: P.args, **named: P.kwargs) -> Client:
        client = Client.__new__(Client)
        of(*arguments, **named)  # A mistake in the arguments shows here, not at the first use.
        client._set_up(lambda: of(*arguments, **named), "trio")
        return client

    return make


def _blocking(
    method: Callable[Concatenate[aio.Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client, P], R]:
    """The method for threads that an async method makes."""

    @functools.wraps(method)
    def call(self: Client, /, *arguments: P.args, **named: P.kwargs) -> R:
        return self._call(lambda client: method(client, *arguments, **named))

    return call


def _iterating(
    method: Callable[Concatenate[aio.Client, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """The iterator for threads that an async iterator makes."""

    @functools.wraps(method)
    def call(self: Client, /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        found = method(self._opened()[1], *arguments, **named)
        end = object()
        try:
            while (item := self._call(lambda _: _next(found, end))) is not end:
                yield cast("T", item)
        finally:
            self._call(lambda _: found.aclose())

    return call


async def _next(items: AsyncIterator[T], end: object) -> T | object:
    return await anext(items, end)


def _holding(
    method: Callable[Concatenate[aio.Client, P], Hold],
) -> Callable[Concatenate[Client, P], AbstractContextManager[Hold]]:
    """The context manager for threads that ``hold`` makes."""

    @functools.wraps(method)
    def call(self: Client, /, *arguments: P.args, **named: P.kwargs) -> AbstractContextManager[Hold]:
        return _Held(self, lambda client: method(client, *arguments, **named))

    return call


class Decorator(Protocol):
    """Takes a function and gives one with the same signature."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """The function that is done once."""


class Client:
    """A client of one server, for threads. The arguments and methods are those of ``idemactor.client.Client``."""

    @_constructing(aio.Client)
    def __init__(self, make: Callable[[], aio.Client]) -> None:
        make()  # A mistake in the arguments shows here, not at the first use.
        self._set_up(make, "asyncio")

    def _set_up(self, make: Callable[[], aio.Client], backend: Backend) -> None:
        self._make = make
        self._backend: Backend = backend
        self._forget()
        _CLIENTS.add(self)

    embedded = staticmethod(_making(aio.Client.embedded))
    in_memory = staticmethod(_making(aio.Client.in_memory))

    reserve = _blocking(aio.Client.reserve)
    accept = _blocking(aio.Client.accept)
    commit = _blocking(aio.Client.commit)
    release = _blocking(aio.Client.release)
    extend = _blocking(aio.Client.extend)
    doubt = _blocking(aio.Client.doubt)
    dispatch = _blocking(aio.Client.dispatch)
    operation = _blocking(aio.Client.operation)
    cancel = _blocking(aio.Client.cancel)
    poll = _blocking(aio.Client.poll)
    ack = _blocking(aio.Client.ack)
    nack = _blocking(aio.Client.nack)
    get = _blocking(aio.Client.get)
    resolve = _blocking(aio.Client.resolve)
    forget = _blocking(aio.Client.forget)
    acknowledge = _blocking(aio.Client.acknowledge)
    stuck = _blocking(aio.Client.stuck)
    policy = _blocking(aio.Client.policy)
    ping = _blocking(aio.Client.ping)
    batch = _blocking(aio.Client.batch)
    records = _iterating(aio.Client.records)
    incidents = _iterating(aio.Client.incidents)
    hold = _holding(aio.Client.hold)

    def once(
        self,
        namespace: str,
        *,
        key: Callable[..., str] | None = None,
        encode: Callable[[Any], bytes] = to_json,
        decode: Callable[[bytes], Any] = from_json,
        **hold: Unpack[HoldArguments],
    ) -> Decorator:
        """Make a function run once for each key; the arguments are those of ``idemactor.client.Client.once``."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            check_function(function, is_async=False)
            plan = Once(function, key, encode, decode)

            @functools.wraps(function)
            def call(*arguments: P.args, **named: P.kwargs) -> R:
                with self.hold(namespace, plan.key_of(arguments, named), **hold) as held:
                    if held.completed:
                        return cast("R", plan.repeat(held.outcome))
                    held.begin_effect()
                    mark = HELD.set(held)
                    try:
                        result = function(*arguments, **named)
                    finally:
                        HELD.reset(mark)
                    plan.keep(held, result)
                return result

            return call

        return decorate

    @property
    def unprotected(self) -> int:
        """How many holds went on although nobody could be asked."""
        return self._opened()[1].unprotected

    @property
    def clock(self) -> SyncClock:
        """The time of ``Client.in_memory()``, see ``idemactor.client.Client.clock``."""
        return SyncClock(self)

    # ---------------------------------------------------------------------------------------------- opening and closing

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection and the thread. A later use opens the client again."""
        with self._lock:
            thread, bridge = self._thread, self._bridge
            self._forget_all_but_the_lock()
        if thread is not None and bridge is not None:
            bridge.stop()
            thread.join()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._forget_all_but_the_lock()

    def _forget_all_but_the_lock(self) -> None:
        self._thread: threading.Thread | None = None
        self._bridge: Bridge | None = None
        self._client: aio.Client | None = None

    def _opened(self) -> tuple[Bridge, aio.Client]:
        bridge, client = self._bridge, self._client
        if bridge is None or client is None:
            with self._lock:
                if self._bridge is None or self._client is None:
                    self._open()
                bridge, client = self._bridge, self._client
        assert bridge is not None
        assert client is not None
        return bridge, client

    def _open(self) -> None:
        ready: Pending[tuple[Bridge, aio.Client]] = Pending()
        thread = threading.Thread(
            target=anyio.run,
            args=(_serve, self._make, ready),
            kwargs={"backend": self._backend},
            name="idemactor",
            daemon=True,
        )
        thread.start()
        self._bridge, self._client = ready.wait()
        self._thread = thread

    def _call(self, method: Callable[[aio.Client], Awaitable[R]]) -> R:
        bridge, client = self._opened()
        return bridge.call(functools.partial(method, client))


class SyncClock:
    """The clock of a client in memory, moved from a thread."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def advance(self, ms: int) -> None:
        """Go on by ``ms`` milliseconds, in one step."""

        async def advance(client: aio.Client) -> None:
            client.clock.advance(ms)

        self._client._call(advance)

    def now_s(self) -> float:
        """Seconds since the clock was made."""
        return self._client._opened()[1].clock.now_s()


async def _serve(make: Callable[[], aio.Client], ready: Pending[tuple[Bridge, aio.Client]]) -> None:
    """The thread's event loop: the client is open until its bridge is stopped."""
    try:
        async with make() as client:
            bridge = Bridge()
            await bridge.serve(lambda: ready.give((bridge, client)))
    except BaseException as error:
        if ready.done:
            raise
        ready.fail(error)


class _Held:
    """A hold that is entered and left from a thread; in the loop both are done by one task."""

    def __init__(self, client: Client, make: Callable[[aio.Client], Hold]) -> None:
        self._client = client
        self._make = make
        self._entered: Pending[Hold] = Pending()
        self._left: anyio.Event | None = None
        self._how: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] = (None, None, None)

    def __enter__(self) -> Hold:
        self._bridge, client = self._client._opened()
        self._task = self._bridge.start(functools.partial(self._run, client), self._entered)
        try:
            return self._entered.wait()
        except BaseException:
            self._bridge.soon(self._task.cancel)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._how = (kind, error, trace)
        assert self._left is not None
        # A bridge that is stopped takes no more, and has cancelled what it had.
        self._bridge.soon(self._left.set)
        return self._task.over.wait()

    async def _run(self, client: aio.Client) -> bool:
        self._left = anyio.Event()
        try:
            hold = self._make(client)
            hold.options = replace(hold.options, on_lost="tell")
            await hold.__aenter__()
            _ = hold.lost  # Made here, by the loop that sets it, and not by a thread that looks at it first.
        except BaseException as error:
            self._entered.fail(error)
            raise
        self._entered.give(hold)
        try:
            await self._left.wait()
        except BaseException as error:  # The thread was interrupted before it had its hold, or the client closes.
            await hold.__aexit__(type(error), error, error.__traceback__)
            raise
        return await hold.__aexit__(*self._how)


# ------------------------------------------------------------------------------------------------------ exit and fork

_CLIENTS: Final[weakref.WeakSet[Client]] = weakref.WeakSet()


def _close_all() -> None:
    for client in list(_CLIENTS):
        client.close()


def _forget_all() -> None:
    """In a forked child the parent's thread is not there, and its connection is not the child's: open anew."""
    for client in list(_CLIENTS):
        client._forget()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
