"""The accept loop survives everything but its own bugs; sockets are bound as their address says."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import stat
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.testing

from idemactor.errors import StartError
from idemactor.server.binding import remove_worker_files, worker_file
from idemactor.server.listeners import (
    ACCEPT_BACKOFF_MS,
    LOOK_AFTER_CLOSED,
    UNIX_SOCKET_MODE,
    AcceptLimits,
    AcceptObserver,
    Handler,
    bind_listeners,
    guard_connection,
    serve_listeners,
    server_ssl_context,
)

PEM: Final = Path(__file__).parent.parent / "system" / "http_hostile"
CERT: Final = PEM / "test_only_cert.pem"
KEY: Final = PEM / "test_only_key.pem"
LOCKED_KEY: Final = PEM / "test_only_locked_key.pem"
"""The same key behind a passphrase, which nobody is there to type."""


@dataclass
class Seen(AcceptObserver):
    """What the observer was told, in order."""

    events: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def connection_opened(self, listener: str) -> None:
        self.events.append(f"opened {listener}")

    def connection_closed(self, listener: str) -> None:
        self.events.append(f"closed {listener}")

    def connection_refused(self, listener: str) -> None:
        self.events.append(f"refused {listener}")

    def accept_failed(self, listener: str, error: OSError) -> None:
        self.events.append(f"accept failed {listener}")
        self.errors.append(error)

    def connection_failed(self, listener: str, error: BaseException) -> None:
        self.events.append(f"failed {listener}")
        self.errors.append(error)


class ScriptedListener:
    """Hands out what the test put in: streams, or errors of accept(2). Closed once the script is at its end."""

    address = "scripted"

    def __init__(self, *script: OSError | trio.abc.Stream, then_wait: bool = False) -> None:
        self._script = deque(script)
        self._then_wait = then_wait
        self.closed = trio.Event()

    async def accept(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if not self._script:
            if self._then_wait:
                await self.closed.wait()
            raise trio.ClosedResourceError
        step = self._script.popleft()
        if isinstance(step, OSError):
            raise step
        return step

    def close(self) -> None:
        self.closed.set()


def pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    return trio.testing.memory_stream_pair()


async def say_hello(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"hello")


async def read_all(stream: trio.abc.Stream) -> bytes:
    received = b""
    while piece := await stream.receive_some(100):
        received += bytes(piece)
    return received


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_running_out_of_descriptors_rests_and_goes_on(code: int, autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = pair()
    seen = Seen()
    started = autojump_clock.current_time()
    await serve_listeners(
        [ScriptedListener(OSError(code, "full"), OSError(code, "full"), theirs)], say_hello, observer=seen
    )
    assert autojump_clock.current_time() - started == pytest.approx(2 * ACCEPT_BACKOFF_MS / 1_000)
    assert await read_all(ours) == b"hello"
    assert seen.events == ["accept failed scripted"] * 2 + ["opened scripted", "closed scripted"]


async def test_connection_that_died_in_the_queue_costs_no_time(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = pair()
    started = autojump_clock.current_time()
    await serve_listeners([ScriptedListener(OSError(errno.ECONNABORTED, "gone"), theirs)], say_hello)
    assert autojump_clock.current_time() == started
    assert await read_all(ours) == b"hello"


async def test_what_connections_leave_in_cycles_is_looked_for_after_so_many_of_them() -> None:
    class Knot:
        def __init__(self) -> None:
            self.itself = self

    left: list[weakref.ref[Knot]] = []

    async def leave_a_knot(stream: trio.abc.Stream) -> None:
        del stream
        left.append(weakref.ref(Knot()))

    gc.collect()
    gc.disable()
    try:
        await serve_listeners([ScriptedListener(*(pair()[1] for _ in range(LOOK_AFTER_CLOSED)))], leave_a_knot)
    finally:
        gc.enable()
    assert len(left) == LOOK_AFTER_CLOSED
    assert not any(knot() for knot in left)


async def test_broken_listening_socket_is_an_error() -> None:
    listener = ScriptedListener(OSError(errno.EBADF, "no socket"))
    with pytest.RaisesGroup(OSError):
        await serve_listeners([listener], say_hello)
    assert listener.closed.is_set()


def mixed(cancelled: BaseException) -> BaseException:
    return BaseExceptionGroup("mixed", [cancelled, ExceptionGroup("inner", [ValueError("bug")])])


@pytest.mark.parametrize(
    "make_error",
    [
        lambda: ValueError("bug"),
        lambda: ExceptionGroup("bugs", [OSError(), ExceptionGroup("in", [KeyError()])]),
        asyncio.CancelledError,
        lambda: BaseExceptionGroup("bugs", [asyncio.CancelledError(), MemoryError()]),
    ],
    ids=["plain", "group", "asyncio", "mixed"],
)
async def test_handler_that_raises_ends_its_connection_only(make_error: Callable[[], BaseException]) -> None:
    ours, theirs = pair()
    good_ours, good_theirs = pair()
    seen = Seen()

    async def handle(stream: trio.abc.Stream) -> None:
        if stream is theirs:
            raise make_error()
        await trio.testing.wait_all_tasks_blocked()
        await say_hello(stream)

    await serve_listeners([ScriptedListener(theirs, good_theirs)], handle, observer=seen)
    assert await read_all(ours) == b""
    assert await read_all(good_ours) == b"hello"
    assert seen.events.count("failed scripted") == 1
    assert seen.events.count("closed scripted") == 2


async def test_errors_mixed_with_cancellation_are_counted_and_cancellation_passes() -> None:
    seen = Seen()
    ours, theirs = pair()
    went_on = False

    async def handle(_: trio.abc.Stream) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            raise mixed(cancelled) from None

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard_connection, theirs, handle, "here", seen)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        went_on = True
    assert scope.cancelled_caught
    assert not went_on
    assert seen.events == ["failed here"]
    assert await read_all(ours) == b""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_passes(error: type[BaseException]) -> None:
    _, theirs = pair()

    async def handle(_: trio.abc.Stream) -> None:
        raise error

    with pytest.raises(error):
        await guard_connection(theirs, handle, "here", AcceptObserver())


async def test_connections_over_the_limit_are_closed_at_once() -> None:
    pairs = [pair() for _ in range(3)]
    leave = trio.Event()
    seen = Seen()

    async def handle(stream: trio.abc.Stream) -> None:
        await leave.wait()
        await say_hello(stream)

    async def serve() -> None:
        arrivals = ScriptedListener(*(theirs for _, theirs in pairs))
        await serve_listeners([arrivals], handle, limits=AcceptLimits(connections_max=2), observer=seen)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
        assert await read_all(pairs[2][0]) == b""
        assert seen.events == ["opened scripted", "opened scripted", "refused scripted"]
        leave.set()
    assert [await read_all(ours) for ours, _ in pairs] == [b"hello", b"hello", b""]


async def test_slot_of_a_closed_connection_is_free_again() -> None:
    class OneAfterTheOther(ScriptedListener):
        async def accept(self) -> trio.abc.Stream:
            await trio.testing.wait_all_tasks_blocked()
            return await super().accept()

    seen = Seen()
    arrivals = OneAfterTheOther(*(pair()[1] for _ in range(3)))
    await serve_listeners([arrivals], say_hello, limits=AcceptLimits(connections_max=1), observer=seen)
    assert seen.events == ["opened scripted", "closed scripted"] * 3


async def test_closing_the_listeners_waits_for_their_connections() -> None:
    ours, theirs = pair()
    listener = ScriptedListener(theirs, then_wait=True)
    finished = False

    async def handle(stream: trio.abc.Stream) -> None:
        await stream.receive_some(1)

    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[list[str]]) -> None:
            nonlocal finished
            await serve_listeners([listener], handle, task_status=task_status)
            finished = True

        assert await nursery.start(serve) == ["scripted"]
        await trio.testing.wait_all_tasks_blocked()
        listener.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not finished
        await ours.send_all(b"x")
    assert finished


async def test_cancelling_closes_listeners_and_connections() -> None:
    ours, theirs = pair()
    listener = ScriptedListener(theirs, then_wait=True)

    async def handle(stream: trio.abc.Stream) -> None:
        await stream.receive_some(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_listeners, [listener], handle)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert listener.closed.is_set()
    assert await read_all(ours) == b""


async def serve_once(addresses: list[str], handle: Handler) -> list[bytes]:
    """What one client of each address reads."""
    listeners = bind_listeners(addresses)
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(serve_listeners, listeners, handle)
        answers = [await read_all(await connect(address)) for address in bound]
        for listener in listeners:
            listener.close()
    return answers


async def connect(address: str) -> trio.SocketStream:
    if address.startswith("unix:"):
        return await trio.open_unix_socket(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    sock = trio.socket.socket(trio.socket.AF_INET6 if host.startswith("[") else trio.socket.AF_INET)
    await sock.connect((host.strip("[]"), int(port)))
    return trio.SocketStream(sock)


async def test_every_kind_of_address_is_served(tmp_path: Path) -> None:
    addresses = ["127.0.0.1:0", "[::1]:0", f"unix:{tmp_path}/a.sock", "localhost:0"]
    assert await serve_once(addresses, say_hello) == [b"hello"] * 4


async def test_a_listener_that_is_closed_with_a_connection_in_its_queue_ends_its_loop(tmp_path: Path) -> None:
    for address in ("127.0.0.1:0", f"unix:{tmp_path}/a.sock"):
        (listener,) = bind_listeners([address])
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_listeners, [listener], say_hello)
            client = await connect(listener.address)
            listener.close()
            await client.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()


async def test_bound_addresses_are_the_real_ones(tmp_path: Path) -> None:
    listeners = bind_listeners(["127.0.0.1:0", "[::1]:0", f"unix:{tmp_path}/a.sock", "localhost:0"])
    v4, v6, unix, name = (listener.address for listener in listeners)
    for listener in listeners:
        listener.close()
    assert v4.startswith("127.0.0.1:")
    assert int(v4.rpartition(":")[2]) > 0
    assert v6.startswith("[::1]:")
    assert int(v6.rpartition(":")[2]) > 0
    assert unix == f"unix:{tmp_path}/a.sock"
    assert name.startswith("127.0.0.1:")


async def test_unix_socket_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    before = os.umask(0)
    try:
        (listener,) = bind_listeners([f"unix:{path}"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == UNIX_SOCKET_MODE == 0o660
    listener.close()
    listener.close()
    assert not path.exists()


async def test_stale_unix_socket_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    (listener,) = bind_listeners([f"unix:{path}"])
    with pytest.raises(StartError, match="another process listens"):
        bind_listeners([f"unix:{path}"])
    assert path.is_socket()
    listener.close()


def test_what_workers_left_who_are_no_more_is_removed_and_nothing_else(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/a.sock"
    (alive,) = bind_listeners([worker_file(address, 3)])
    for number in (1, 2, 4, 11):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{tmp_path}/a.sock.{number}")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{tmp_path}/b.sock.2")
    (tmp_path / "a.sock.5").write_text("data")
    remove_worker_files(["127.0.0.1:0", address, f"unix:{tmp_path}/none/c.sock"], range(2, 10))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "a.sock.1",
        "a.sock.11",
        "a.sock.3",
        "a.sock.5",
        "b.sock.2",
    ]
    alive.close()


async def test_file_in_the_way_of_a_unix_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(StartError, match="no socket"):
        bind_listeners([f"unix:{path}"])
    assert path.read_text() == "data"


async def test_closing_leaves_the_socket_of_a_successor(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    (old,) = bind_listeners([f"unix:{path}"])
    path.rename(tmp_path / "moved")
    (new,) = bind_listeners([f"unix:{path}"])
    old.close()
    assert path.is_socket()
    new.close()


async def test_failing_to_bind_one_closes_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    (taken,) = bind_listeners(["127.0.0.1:0"])
    with pytest.raises(StartError, match=f"cannot listen on {taken.address}"):
        bind_listeners([f"unix:{path}", taken.address])
    assert not path.exists()
    taken.close()
    bind_listeners([taken.address])[0].close()


@pytest.mark.parametrize(
    "address",
    ["nonsense", "127.0.0.1:99999", "127.0.0.1:x", "[::1]", "192.0.2.1:0", "unix:/" + "a" * 200, "unix:/no/a"],
)
async def test_impossible_address_is_a_start_error(address: str) -> None:
    with pytest.raises(StartError, match="cannot listen on"):
        bind_listeners([address])


def test_tls_files_that_cannot_be_used_are_start_errors(tmp_path: Path) -> None:
    server_ssl_context(CERT, KEY, CERT, alpn=["http/1.1"])
    for cert, key, client_ca in (
        (tmp_path / "none", KEY, None),
        (CERT, tmp_path / "none", None),
        (CERT, CERT, None),
        (CERT, LOCKED_KEY, None),
        (CERT, KEY, tmp_path / "none"),
        (CERT, KEY, KEY),
    ):
        with pytest.raises(StartError, match="cannot use") as caught:
            server_ssl_context(cert, key, client_ca)
        absent = str(tmp_path / "none")
        assert str(caught.value).endswith(f"'{absent}'") == (absent in map(str, (cert, key, client_ca)))
