"""The client: one object for a program, used by any number of tasks, on trio or on asyncio.

    async with Client("127.0.0.1:8788") as client:
        async with client.hold("trade", key, payload=order) as hold:
            ...

Whatever runs in the background (the connection, renewals, what is settled later) runs in tasks of the client, so that
nobody's cancellation leaves a reservation without an owner.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import anyio
from anyio.abc import TaskGroup

from idemactor.client.address import Address, dial, parse_address
from idemactor.client.bounds import check_holder
from idemactor.client.caller import Caller
from idemactor.client.checks import (
    check_choice,
    check_duration,
    check_flag,
    check_text,
    check_whole,
    on_unavailable_from,
)
from idemactor.client.clock import LeaseClock, ManualClock, SystemClock
from idemactor.client.errors import ClientClosed
from idemactor.client.fleet import Fleet
from idemactor.client.flight import Channel, Flight
from idemactor.client.holding import Holding
from idemactor.client.link import Dial, Link
from idemactor.client.results import NamespacePolicy
from idemactor.client.settle import Report, Settler
from idemactor.core.limits import HOLDER_CHARS_MAX
from idemactor.core.policy import Policy

TIMEOUT_MS: Final = 10_000
CONNECT_MS: Final = 2_000
SILENCE_MS: Final = 2_000
CLEANUP_MS: Final = 1_000
IN_FLIGHT_MAX: Final = 1_024
"""The defaults of ``Client``; its arguments say what they mean."""

_CLOSED: Final = "the client is not open: use it inside `async with`"

_log = logging.getLogger("idemactor.client")


class Client(Holding):
    """A client of one server; open it with ``async with``.

    Args:
        address: ``host:port``, ``[v6]:port`` or ``unix:/path``.
        token: What to authenticate with.
        tls: True, or a context, to speak TLS.
        timeout_ms: How long a call goes on, reconnecting and repeating, before it raises ``OutOfService``.
        connect_ms: How long one attempt to connect may take.
        silence_ms: A connection on which nothing comes for so long after a call is given up, and another is made.
        cleanup_ms: How long a hold that ends badly, or the client when it closes, waits for the server to be told.
        in_flight_max: How many calls may be on their way; one more waits.
        holder: Who asks, shown to those who find a key in flight; None: host and process.
        on_unavailable: ``"closed"`` or ``"open"``, for holds that say nothing else; None: the namespace's policy.
        unavailable_after_ms: How long to try before going on unprotected; None: the namespace's policy.
        direct: Go straight to the process that owns a key, where the server has several (``[server] workers``): their
            addresses, other ports of the same host, have to be reachable for that to be of any use.
        on_report: Told how it went when the server was told of what went on unprotected. Must not block.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is none that there is, the address for one.

    Attributes:
        unprotected: How many holds went on although nobody could be asked.
    """

    _on_report: Callable[[Report], None] | None = None

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | bool | None = None,
        timeout_ms: int = TIMEOUT_MS,
        connect_ms: int = CONNECT_MS,
        silence_ms: int = SILENCE_MS,
        cleanup_ms: int = CLEANUP_MS,
        in_flight_max: int = IN_FLIGHT_MAX,
        holder: str | None = None,
        on_unavailable: Literal["closed", "open"] | None = None,
        unavailable_after_ms: int | None = None,
        direct: bool = False,
        on_report: Callable[[Report], None] | None = None,
    ) -> None:
        check_text("address", address)
        place = parse_address(address)
        if token is not None:
            check_text("token", token)
            if not token:
                raise ValueError("token is empty: leave it out, or see why the program has none")
        check_duration("connect_ms", connect_ms, above_zero=True)
        check_duration("silence_ms", silence_ms, above_zero=True)
        check_whole("in_flight_max", in_flight_max, least=1)
        if unavailable_after_ms is not None:
            check_whole("unavailable_after_ms", unavailable_after_ms)
        if tls is not None and not isinstance(tls, bool | ssl.SSLContext):
            raise TypeError(f"tls is True, False or an ssl.SSLContext, not {type(tls).__name__}")
        check_flag("direct", direct)
        if on_report is not None and not callable(on_report):
            raise TypeError(f"on_report is a function, not {type(on_report).__name__}")
        context = ssl.create_default_context() if tls is True else tls or None

        def link(dial_it: Dial) -> Link:
            return Link(
                dial_it,
                address,
                token=token,
                connect_ms=connect_ms,
                silence_ms=silence_ms,
                in_flight_max=in_flight_max,
            )

        def to(there: Address) -> Dial:
            return functools.partial(dial, there, context)

        def connect() -> Channel:
            return Fleet(place, to, link) if direct else link(to(place))

        self._set_up(connect, SystemClock(), timeout_ms, cleanup_ms, holder)
        self._on_unavailable = on_unavailable_from(on_unavailable)
        self._unavailable_after_ms = unavailable_after_ms
        self._on_report = on_report

    def _set_up(
        self,
        connect: Callable[[], Channel],
        lease_clock: LeaseClock,
        timeout_ms: int,
        cleanup_ms: int,
        holder: str | None,
    ) -> None:
        check_duration("timeout_ms", timeout_ms)
        check_duration("cleanup_ms", cleanup_ms)
        if holder is not None:
            check_holder(holder)
        self.unprotected = 0
        self.lease_clock = lease_clock
        self._connect = connect
        self._timeout_ms = timeout_ms
        self._cleanup_ms = cleanup_ms
        self._holder = holder if holder is not None else _whoami()
        self._policies: dict[str, NamespacePolicy] = {}
        self._fetched_at: dict[str, float] = {}
        self._tasks: TaskGroup | None = None
        self._settler: Settler | None = None
        self._caller: Caller | None = None

    # ------------------------------------------------------------------------------------------------- without a server

    @classmethod
    def embedded(
        cls,
        data_dir: str | os.PathLike[str],
        *,
        namespaces: Mapping[str, Policy] | None = None,
        shards: int | None = None,
        durability: Literal["full", "process"] = "full",
        timeout_ms: int = TIMEOUT_MS,
        cleanup_ms: int = CLEANUP_MS,
        holder: str | None = None,
    ) -> Self:
        """A client that runs the shards itself, in this program, on ``data_dir``. For trio only.

        Args:
            data_dir: Made where there is none; owned by this program alone while the client is open.
            namespaces: Settings by name; None: every name has the defaults.
            shards: How many, where the directory is new.
            durability: ``"full"`` is safe from power loss, ``"process"`` from the end of the process alone.
            timeout_ms: As in ``Client``; so are the others.
            cleanup_ms: As in ``Client``.
            holder: As in ``Client``.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument is none that there is, an empty ``data_dir`` for one.
            StartError: On opening: the directory cannot be used; the message says the way out.
        """
        from idemactor.client.on_disk import on_disk

        if not os.fspath(data_dir):
            raise ValueError("data_dir is empty; name a directory")
        if shards is not None:
            check_whole("shards", shards, least=1)
        check_choice("durability", durability, ("full", "process"))
        _check_namespaces(namespaces)
        client = cls.__new__(cls)
        make = on_disk(Path(data_dir), namespaces, shards, durability)
        client._set_up(make, SystemClock(), timeout_ms, cleanup_ms, holder)
        return client

    @classmethod
    def in_memory(
        cls,
        *,
        namespaces: Mapping[str, Policy] | None = None,
        timeout_ms: int = TIMEOUT_MS,
        cleanup_ms: int = CLEANUP_MS,
        holder: str | None = None,
    ) -> Self:
        """A client with shards of its own that keep nothing, for tests: time stands still until ``clock.advance``.

        For trio only; the arguments are those of ``embedded``.
        """
        from idemactor.client.embedded import in_memory

        _check_namespaces(namespaces)
        client = cls.__new__(cls)
        clock = ManualClock()
        client._set_up(in_memory(namespaces, clock), clock, timeout_ms, cleanup_ms, holder)
        return client

    @property
    def clock(self) -> ManualClock:
        """The time of ``Client.in_memory()``.

        Raises:
            RuntimeError: This client's time is the machine's.
        """
        if not isinstance(self.lease_clock, ManualClock):
            raise RuntimeError("only Client.in_memory() has a clock that can be moved")
        return self.lease_clock

    # ---------------------------------------------------------------------------------------------- opening and closing

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError("the client is open already")
        channel = self._connect()
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._tasks = tasks
        try:
            await tasks.start(channel.run)
        except BaseException:
            await self._end_tasks()
            raise
        self._renewals = None
        self._caller = Caller(channel)
        self._settler = Settler(self._caller, tasks, self._on_report)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._settler is not None
        assert self._caller is not None
        await self._settler.drain(self._cleanup_ms)
        self._caller.close()
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        """End what runs in the background, whatever happens around it.

        The body's exception is none of its business, and goes its way without a group around it.
        """
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        tasks.cancel_scope.shield = True
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)

    # ------------------------------------------------------------------------------------------------ for holds to use

    def ask(self, flight: Flight, budget_ms: int | None) -> Awaitable[Any]:
        """One call, as ``Caller.ask``."""
        if self._caller is None:
            raise ClientClosed(_CLOSED)
        return self._caller.ask(flight, budget_ms)

    def check(self) -> None:
        """Raise where no calls can be made.

        Raises:
            ClientClosed: The client is not open.
            ForkedError: It was opened in another process.
        """
        if self._caller is None:
            raise ClientClosed(_CLOSED)
        self._caller.check()

    def start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` in the background until it ends or the client closes."""
        if self._tasks is None:
            raise ClientClosed(_CLOSED)
        self._tasks.start_soon(_guarded, work)

    def _ask(self, flight: Flight, timeout_ms: int | None) -> Awaitable[Any]:
        if timeout_ms is not None:
            check_duration("timeout_ms", timeout_ms)
        return self.ask(flight, self._timeout_ms if timeout_ms is None else timeout_ms)

    def _settling(self) -> Settler:
        if self._settler is None:
            raise ClientClosed(_CLOSED)
        return self._settler


async def _guarded(work: Callable[[], Awaitable[None]]) -> None:
    """A mistake in one background task must not cancel all the others, and every holder with them."""
    try:
        await work()
    except Exception:
        _log.exception("a background task failed")


def _check_namespaces(namespaces: object) -> None:
    if namespaces is None:
        return
    if not isinstance(namespaces, Mapping) or not all(isinstance(each, Policy) for each in namespaces.values()):
        raise TypeError("namespaces are a mapping of names to Policy")


def _whoami() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"[:HOLDER_CHARS_MAX]
