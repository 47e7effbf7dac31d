"""The client against a real server: killed, stopped, restarted with and without its data, behind a line that is cut."""

# ruff: noqa: PT012 - What is raised comes out of the context manager, whatever its body does.

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio.abc import ByteStream

from idemactor.client import (
    Client,
    Completed,
    InFlightError,
    LeaseLost,
    Reserved,
    Unauthenticated,
    UnknownKeyError,
    Unreachable,
    Why,
    forks,
    sync,
)
from tests.system.process import Server, environment, eventually

CERTIFICATE: Final = Path(__file__).parent / "http_hostile" / "test_only_cert.pem"
PRIVATE_KEY: Final = Path(__file__).parent / "http_hostile" / "test_only_key.pem"

both_loops = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def run(backend: str, test: Callable[[], Awaitable[None]]) -> None:
    """Run ``test``, in real time."""

    async def bounded() -> None:
        with anyio.fail_after(60):
            await test()

    anyio.run(bounded, backend=backend)


def address_in(home: Path) -> str:
    """An address that stays the same over restarts."""
    return f"unix:{home}/rpc.sock"


@pytest.fixture
def own_server(home: Path) -> Server:
    return Server(home, rpc=(address_in(home),))


async def in_thread(work: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(work)


def test_what_is_stuck_is_told(home: Path, own_server: Server) -> None:
    with own_server.start(), sync.Client(address_in(home)) as client:
        held = client.reserve("default", "k", holder="w1")
        assert isinstance(held, Reserved)
        client.doubt("default", "k", held.token, reason="no answer")
        told = client.stuck(older_than_ms=3_600_000, limit=10)
        [one] = told.stuck
        assert (one.why, one.key, one.holder, one.reason) == (Why.IN_DOUBT, "k", "w1", "no answer")
        assert (told.more, told.silent_shards) == (False, ())


# ----------------------------------------------------------------------------------------------------- death and return


@both_loops
def test_killed_in_the_middle_of_a_hold_and_restarted_on_the_same_data(
    backend: str, home: Path, own_server: Server
) -> None:
    async def main() -> None:
        with own_server.start():
            async with Client(address_in(home)) as client:
                async with client.hold("default", "k", lease_ms=6_000) as hold:
                    hold.begin_effect()
                    await in_thread(own_server.restart)
                    await anyio.sleep(2.5)
                    hold.set_outcome(body=b"x")
                record = await client.get("default", "k")
                assert (record.state, record.attempt, record.operation_id) == ("committed", 1, hold.operation_id)

    run(backend, main)


@both_loops
def test_killed_before_the_commit_and_back_a_moment_later(backend: str, home: Path, own_server: Server) -> None:
    async def main() -> None:
        with own_server.start():
            async with Client(address_in(home)) as client, anyio.create_task_group() as tasks:
                async with client.hold("default", "k") as hold:
                    hold.begin_effect()
                    own_server.kill()
                    tasks.start_soon(in_thread, own_server.start)
                record = await client.get("default", "k")
                assert (record.state, record.token) == ("committed", hold.token)

    run(backend, main)


@both_loops
def test_restarted_with_nothing_left(backend: str, home: Path, own_server: Server) -> None:
    async def main() -> None:
        with own_server.start():
            async with Client(address_in(home)) as client:
                with pytest.raises(LeaseLost) as caught:
                    async with client.hold("default", "k", lease_ms=3_000) as hold:
                        hold.begin_effect()
                        own_server.kill()
                        shutil.rmtree(own_server.data_dir)
                        await in_thread(own_server.start)
                        await anyio.sleep(30)
                assert caught.value.effect_begun
                with pytest.raises(UnknownKeyError):
                    async with client.hold("default", "k2") as hold:
                        own_server.kill()
                        shutil.rmtree(own_server.data_dir)
                        await in_thread(own_server.start)

    run(backend, main)


@both_loops
def test_a_server_that_hangs(backend: str, home: Path, own_server: Server) -> None:
    async def main() -> None:
        with own_server.start():
            async with Client(address_in(home), timeout_ms=1_500, silence_ms=400) as client:
                async with client.hold("default", "k") as hold:
                    own_server.signal(signal.SIGSTOP)
                    with pytest.raises(Unreachable):
                        await client.ping()
                    own_server.signal(signal.SIGCONT)
                assert (await client.get("default", "k")).token == hold.token
                own_server.signal(signal.SIGSTOP)
                with pytest.raises(Unreachable):
                    await client.reserve("default", "given-back")
                own_server.signal(signal.SIGCONT)
                with anyio.fail_after(10):
                    while True:
                        with contextlib.suppress(InFlightError):
                            break_out = await client.reserve("default", "given-back")
                            assert isinstance(break_out, Reserved)
                            break
                        await anyio.sleep(0.05)

    run(backend, main)


def test_a_process_that_dies_in_the_middle_leaves_a_takeover_behind(home: Path, own_server: Server) -> None:
    script = f"""
        import os, signal, trio
        from idemactor.client import Client

        async def main():
            async with Client({address_in(home)!r}) as client:
                async with client.hold("default", "k", lease_ms=700) as hold:
                    hold.begin_effect()
                    print(hold.operation_id, flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)

        trio.run(main)
    """
    with own_server.start(), sync.Client(address_in(home)) as client:
        command = [sys.executable, "-c", textwrap.dedent(script)]
        died = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=30, check=False)
        assert died.returncode == -signal.SIGKILL, died.stderr
        with client.hold("default", "k", wait=True) as hold:
            assert hold.takeover
            assert hold.operation_id == died.stdout.strip()


# ---------------------------------------------------------------------------------------------------------- a cut line


class Line:
    """A line to the server that is cut at the n-th piece of bytes on it, before that piece gets through or after."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.cut_at = 0
        self.after = False
        self.pieces = 0

    def plan(self, cut_at: int, *, after: bool) -> None:
        """Count from here on."""
        self.cut_at, self.after, self.pieces = cut_at, after, 0

    async def handle(self, client: ByteStream) -> None:
        """One connection."""
        async with client, await anyio.connect_unix(self.path) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(self._carry, client, server, tasks.cancel_scope)
            tasks.start_soon(self._carry, server, client, tasks.cancel_scope)

    async def _carry(self, source: ByteStream, sink: ByteStream, scope: anyio.CancelScope) -> None:
        try:
            async for data in source:
                self.pieces += 1
                is_cut = self.pieces == self.cut_at
                if not is_cut or self.after:
                    await sink.send(data)
                if is_cut:
                    break
        except (OSError, anyio.BrokenResourceError):
            pass
        finally:
            scope.cancel()


@contextlib.asynccontextmanager
async def line_to(home: Path) -> AsyncIterator[tuple[Line, str]]:
    """A line to the server below ``home``, and its address."""
    line = Line(f"{home}/rpc.sock")
    listener = await anyio.create_unix_listener(home / "line.sock")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, line.handle)
        yield line, f"unix:{home}/line.sock"
        tasks.cancel_scope.cancel()


@both_loops
@pytest.mark.parametrize("after", [False, True])
def test_the_line_is_cut_at_each_step_of_a_hold(backend: str, after: bool, home: Path, own_server: Server) -> None:
    async def main() -> None:
        with own_server.start():
            async with line_to(home) as (line, address), Client(address) as client:
                cuts = 0
                for number in range(1, 40):
                    key = f"k{number}"
                    line.plan(number, after=after)
                    async with client.hold("default", key) as hold:
                        hold.begin_effect()
                        await client.ping()
                        hold.set_outcome(body=key)
                    record = await client.get("default", key)
                    assert (record.state, record.attempt, record.token) == ("committed", 1, hold.token)
                    cuts += line.pieces >= number
                assert cuts >= 4

    run(backend, main)


@both_loops
@pytest.mark.parametrize("after", [False, True])
def test_the_line_is_cut_at_each_step_of_a_release(backend: str, after: bool, home: Path, own_server: Server) -> None:
    async def main() -> None:
        with own_server.start():
            async with line_to(home) as (line, address), Client(address) as client:
                for number in range(1, 12):
                    line.plan(number, after=after)
                    with pytest.raises(ValueError, match="x"):
                        async with client.hold("default", f"k{number}"):
                            raise ValueError("x")
                    with pytest.raises(UnknownKeyError):
                        await client.get("default", f"k{number}")
                assert [record async for record in client.records("default")] == []

    run(backend, main)


# ----------------------------------------------------------------------------------------------------- many, and others


@both_loops
def test_a_thousand_holds_at_once_on_one_connection(backend: str, home: Path, own_server: Server) -> None:
    async def main() -> None:
        with own_server.start():
            async with Client(address_in(home), timeout_ms=30_000) as client:
                everyone, inside = anyio.Event(), 0

                async def hold(number: int) -> None:
                    nonlocal inside
                    async with client.hold("default", f"k{number}"):
                        inside += 1
                        if inside == 1_000:
                            everyone.set()
                        await everyone.wait()

                async with anyio.create_task_group() as tasks:
                    for number in range(1_000):
                        tasks.start_soon(hold, number)
                states = [record.state async for record in client.records("default", page_size=1_000)]
                assert states == ["committed"] * 1_000

    run(backend, main)


def test_eight_threads_share_one_synchronous_client(home: Path, own_server: Server) -> None:
    with own_server.start(), sync.Client(address_in(home)) as client:
        ran: list[str] = []

        def work() -> None:
            for number in range(25):
                with client.hold("default", f"k{number}", wait=True) as hold:
                    if not hold.completed:
                        hold.begin_effect()
                        ran.append(f"k{number}")

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(ran) == sorted({f"k{number}" for number in range(25)})


@pytest.mark.parametrize("entering", ["hold", "reserve"])
def test_ctrl_c_while_a_thread_waits_leaves_nothing_reserved(entering: str, home: Path, own_server: Server) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with own_server.start(), sync.Client(address_in(home)) as client:
            first = client.reserve("default", "k")
            assert isinstance(first, Reserved)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                if entering == "hold":
                    client.hold("default", "k", wait=True).__enter__()
                else:
                    client.reserve("default", "k", wait_ms=20_000)
            client.release("default", "k", first.token)
            eventually(lambda: [record.key for record in client.records("default")] == [])
    finally:
        signal.signal(signal.SIGALRM, before)


def in_child(work: Callable[[], Any]) -> int:
    """Run ``work`` in a forked child; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_never_shares_the_connection(home: Path, own_server: Server) -> None:
    with own_server.start(), sync.Client(address_in(home)) as client:
        with client.hold("default", "k") as hold:
            sockets = list(forks._SOCKETS)
            assert sockets

            def child() -> None:
                assert not any(stat.S_ISSOCK(os.fstat(number).st_mode) for number in sockets)
                with pytest.raises(InFlightError), client.hold("default", "k"):
                    pytest.fail("the parent holds it")
                with client.hold("default", "child"):
                    pass
                client.close()

            for _ in range(3):
                assert in_child(child) == 0
            assert all(stat.S_ISSOCK(os.fstat(number).st_mode) for number in sockets)
            hold.set_outcome(body=b"parent")
        assert isinstance(client.reserve("default", "child"), Completed)
        assert client.get("default", "k").token == hold.token


@both_loops
def test_tls_and_a_token_over_tcp(backend: str, home: Path) -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    config = textwrap.dedent(f"""
        [rpc]
        tls_cert = "{CERTIFICATE}"
        tls_key = "{PRIVATE_KEY}"

        [namespaces.default]

        [auth.tokens.caller]
        sha256 = "{digest}"
        tenant = "acme"
        namespaces = ["*"]
        role = "caller"
    """)
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))

    async def main() -> None:
        with Server(home, config).start() as server:
            async with Client(server.rpc, tls=trusting, token="secret") as client:
                async with client.hold("default", "k"):
                    pass
                assert isinstance(await client.reserve("default", "k"), Completed)
            async with Client(server.rpc, tls=trusting, token="wrong") as client:
                with pytest.raises(Unauthenticated):
                    await client.reserve("default", "k")
            async with Client(server.rpc, tls=True, token="secret", on_unavailable="open") as client:
                with pytest.raises(Exception, match="not trusted"):
                    async with client.hold("default", "k"):
                        pytest.fail("a server that nobody vouches for")

    run(backend, main)
