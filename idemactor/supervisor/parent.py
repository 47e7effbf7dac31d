"""The supervisor: it owns the directory and the sockets, starts the workers, and starts again the one that died.

It does none of the work itself, so that there is hardly anything that could bring it down; and if it goes all the
same, its children are killed by the system, and nobody goes on serving what a new server is about to open.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn

from idemactor.config import ServerConfig
from idemactor.config.reload import TokenReloader
from idemactor.node import audit_of, note_reload, open_directory, ready_line
from idemactor.observability import logs
from idemactor.observability.audit import Audit
from idemactor.server.service_manager import NO_SOCKETS, NOBODY, Inherited, ServiceManager
from idemactor.server.stop import SIGNALS, STOP_SIGNALS, Terminal, ignore_from_now_on
from idemactor.shard.backoff import Backoff
from idemactor.storage.directory import DataDirectory
from idemactor.supervisor.bulletin import Bulletin
from idemactor.supervisor.doors import bound
from idemactor.supervisor.process import EXIT_FAILED, Child, start_child
from idemactor.supervisor.work import BEAT_MS, READY, Epoch, Inheritance, prepare, work
from idemactor.workers.sockets import bind_sockets, remove_sockets

STOP_SECONDS_MORE: Final = 5.0
"""How much longer than the time to drain workers that were told to stop may take; then they are killed."""

START_MS_MAX: Final = 600_000
"""How long a worker may take to be ready, its shards' recovery included; then it is taken for one that hangs."""

STEADY_MS: Final = 10_000
"""A worker that lived for so long is started again at once when it dies; another after a while that doubles."""

TOGETHER_SECONDS: Final = 0.2
"""A signal that is sent to all processes of a server reaches all of them within this time, whichever is the first; and
what was killed before we were told to stop has ended by then."""

_SIGNALS_MAX: Final = 4_096
_TOLD: Final = (0, -signal.SIGTERM)
"""Exit codes of a child that was told to stop; the second, of one that served nobody yet."""

_MS_PER_S: Final = 1_000
_log = logging.getLogger(__name__)


class _Stopped(Exception):
    """A signal said to stop."""


class _Ended(Exception):
    """A child ended that was needed to go on."""

    def __init__(self, code: int) -> None:
        self.code = code


def supervise(
    config: ServerConfig,
    *,
    load: Callable[[], ServerConfig],
    announce: Callable[[str], None],
    sockets: Inherited = NO_SOCKETS,
    manager: ServiceManager = NOBODY,
) -> int:
    """Serve with several workers until SIGTERM, SIGINT, or SIGHUP from a terminal that closes.

    Args:
        config: A valid configuration.
        load: Reads it again, for its tokens, at any other SIGHUP. Raises: ConfigError.
        announce: Is given the ready line once every worker answers.
        sockets: Those that listen already.
        manager: Is told how it goes.

    Returns:
        The exit code.

    Raises:
        StartError: The directory or an address cannot be used; what only a child found out, it has said itself.
    """
    logs.configure(config.log.level)
    workers = config.server.workers
    terminal = Terminal()
    # The signals first: one that comes while the directory is made, or is waited for, is heard afterwards.
    with _signals() as signals, open_directory(config, workers) as directory:
        supervisor = _Supervisor(signals, TokenReloader(config, load), audit_of(config), terminal, manager)
        try:
            epoch = supervisor.prepare(config, directory)
            directory.reread()
            with bound(config, sockets) as doors, _sockets(directory, workers) as inner:
                given = Inheritance(config, directory, doors, inner, epoch, supervisor.bulletin)
                supervisor.start(given)
                line = ready_line(*(door.common for door in doors.all()))
                announce(line)
                manager.ready(line)
                logs.log_event(_log, logging.INFO, "ready", workers=workers)
                return supervisor.watch(given)
        except _Stopped:
            return 0
        except _Ended as ended:
            # Killed by a signal: what it was is said here, since it could say nothing itself.
            if ended.code < 0:
                logs.log_event(_log, logging.ERROR, "child_killed", signal=-ended.code)
            return max(ended.code, EXIT_FAILED)
        finally:
            supervisor.kill()


@contextlib.contextmanager
def _sockets(directory: DataDirectory, workers: int) -> Iterator[list[socket.socket]]:
    """Where the workers meet."""
    bound_sockets = bind_sockets(directory.path, workers)
    try:
        yield bound_sockets
    finally:
        for sock in bound_sockets:
            sock.close()
        remove_sockets(directory.path, workers)


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor from which the numbers of signals can be read as they come, each a byte."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    handled = (*SIGNALS, signal.SIGCHLD)
    before = {number: signal.signal(number, lambda *_: None) for number in handled}
    old = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


@dataclass(slots=True)
class _Worker:
    """One worker's place, whichever process fills it.

    Attributes:
        child: The process; None: it died and is not back yet.
        ready: Whether that process has said that it answers.
        started_ms: When it was started.
        heard_ms: When it last said anything.
        hung: It was killed for its silence.
        backoff: How long to wait before the next one.
    """

    number: int
    child: Child | None = None
    ready: bool = False
    started_ms: int = 0
    heard_ms: int = 0
    hung: bool = False
    backoff: Backoff = field(default_factory=Backoff)


class _Supervisor:
    """The children, and waiting for them.

    Args:
        signals: See ``_signals``.
        reloader: Reads the tokens anew.
        audit: Where that is written down.
        terminal: Where the server was started.
        manager: Is told how it goes.

    Attributes:
        bulletin: What all workers are told.
    """

    def __init__(
        self,
        signals: int,
        reloader: TokenReloader,
        audit: Audit,
        terminal: Terminal,
        manager: ServiceManager = NOBODY,
    ) -> None:
        self._signals = signals
        self._reloader = reloader
        self._audit = audit
        self._terminal = terminal
        self._manager = manager
        self._looked_ms = 0
        self.bulletin = Bulletin()
        self._children: list[Child] = []
        self._workers: list[_Worker] = []
        self._stopping = False

    # ------------------------------------------------------------------------------------------- from first to last

    def prepare(self, config: ServerConfig, directory: DataDirectory) -> Epoch:
        """Have the directory looked after; see ``work.prepare``."""
        child = self._start(functools.partial(prepare, config, directory))
        said = b""
        while not child.silent:
            self._sleep(None)
            said += child.read()
        while (code := self._reaped(child)) is None:
            self._sleep(None)
        if code != 0:
            self._give_up(code)
        return Epoch.from_bytes(said)

    def start(self, given: Inheritance) -> None:
        """Start all workers and wait until each of them answers."""
        gc.collect()
        gc.freeze()
        self._workers = [_Worker(number) for number in range(given.config.server.workers)]
        for worker in self._workers:
            self._start_worker(worker, given)
        while not all(worker.ready for worker in self._workers):
            self._sleep(None)
            for worker in self._workers:
                assert worker.child is not None
                self._hear(worker)
                code = self._reaped(worker.child)
                if code is not None:
                    self._give_up(code)
        # Not only where ``watch`` begins: we may be stopped before that, with all of them.
        self._looked_ms = _now_ms()

    def watch(self, given: Inheritance) -> int:
        """Start again what dies or hangs, until a signal says to stop, and then stop it all; returns the exit code."""
        with contextlib.suppress(_Stopped):
            while True:
                self._sleep(self._next_look_s())
                for worker in self._workers:
                    self._hear(worker)
                    self._bury(worker)
                    if worker.child is None and worker.backoff.until_ms <= _now_ms():
                        self._start_worker(worker, given)
                self._look_after(given.config.server.hang_ms)
        return self._stop(given)

    def _look_after(self, hang_ms: int) -> None:
        """Kill the worker that hangs, so that it can be started anew; tell the watchdog where all is as it should be.

        Its silence is one of whole seconds: a worker beats only when its loop and all its shards have gone round.
        """
        now_ms = _now_ms()
        away_ms = now_ms - self._looked_ms - 2 * BEAT_MS
        self._looked_ms = now_ms
        for worker in self._workers:
            if away_ms > 0:
                # It was us who were stopped, or starved; the others perhaps as well.
                worker.heard_ms += away_ms
            silent_ms = now_ms - worker.heard_ms
            if worker.child is not None and not worker.hung and silent_ms > (hang_ms if worker.ready else START_MS_MAX):
                worker.hung = True
                worker.child.signal(signal.SIGKILL)
                logs.log_event(
                    _log, logging.ERROR, "worker_hung", worker=worker.number, pid=worker.child.pid, silent_ms=silent_ms
                )
        # One that died comes back through us. One that cannot even be killed is beyond us: then the watchdog ends all.
        if not any(worker.hung for worker in self._workers):
            self._manager.alive()

    def _give_up(self, code: int) -> NoReturn:
        """A child ended that was needed to go on; where it was told to stop, we may be told as well."""
        end = time.monotonic() + TOGETHER_SECONDS
        while code in _TOLD and time.monotonic() < end:
            self._sleep(end - time.monotonic())
        raise _Ended(code or EXIT_FAILED)

    def _stop(self, given: Inheritance) -> int:
        logs.log_event(_log, logging.INFO, "draining")
        self._manager.stopping()
        given.doors.close()
        for child in self._children:
            child.signal(signal.SIGTERM)
        begun = time.monotonic()
        end, failed = begun + given.config.server.drain_ms / _MS_PER_S + STOP_SECONDS_MORE, False
        while self._children and time.monotonic() < end:
            codes = [code for child in list(self._children) if (code := self._reaped(child)) is not None]
            # Who was killed before it was told has failed as a worker; the others have stopped as they should.
            before = time.monotonic() - begun < TOGETHER_SECONDS
            failed |= any(code not in _TOLD and not (before and code < 0) for code in codes)
            if self._children:
                self._sleep(min(end - time.monotonic(), BEAT_MS / _MS_PER_S))
                self._manager.alive()
        logs.log_event(_log, logging.INFO, "stopped")
        return EXIT_FAILED if self._children or failed else 0

    def kill(self) -> None:
        """End what is left, at once."""
        for child in self._children:
            child.signal(signal.SIGKILL)
        for child in self._children:
            os.waitpid(child.pid, 0)
            child.forget()
        self._children.clear()

    # ---------------------------------------------------------------------------------------------------- children

    def _start(self, work: Callable[[Callable[[bytes], None]], None]) -> Child:
        child = start_child(work)
        self._children.append(child)
        return child

    def _start_worker(self, worker: _Worker, given: Inheritance) -> None:
        worker.started_ms = worker.heard_ms = _now_ms()
        worker.ready = worker.hung = False
        try:
            worker.child = self._start(functools.partial(work, given, worker.number))
        except OSError as error:
            wait_ms = worker.backoff.fail(_now_ms())
            logs.log_event(
                _log, logging.ERROR, "worker_not_started", worker=worker.number, reason=str(error), retry_ms=wait_ms
            )

    def _hear(self, worker: _Worker) -> None:
        said = b"" if worker.child is None else worker.child.read()
        if said:
            worker.heard_ms = _now_ms()
        if worker.child is not None and READY in said and not worker.ready:
            worker.ready = True
            logs.log_event(_log, logging.INFO, "worker_ready", worker=worker.number, pid=worker.child.pid)

    def _bury(self, worker: _Worker) -> None:
        """See whether a worker died, and when to start it again."""
        if worker.child is None or (code := self._reaped(worker.child)) is None:
            return
        now_ms = _now_ms()
        if worker.ready and now_ms - worker.started_ms >= STEADY_MS:
            worker.backoff.reset()
            wait_ms = 0
        else:
            wait_ms = worker.backoff.fail(now_ms)
        pid, worker.child, worker.hung = worker.child.pid, None, False
        logs.log_event(_log, logging.ERROR, "worker_died", worker=worker.number, pid=pid, exit=code, retry_ms=wait_ms)

    def _reaped(self, child: Child) -> int | None:
        """A child's exit code once it has ended (negative: the signal that ended it), None before."""
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if not pid:
            return None
        self._children.remove(child)
        child.forget()
        return os.waitstatus_to_exitcode(status)

    # ----------------------------------------------------------------------------------------------------- waiting

    def _next_look_s(self) -> float:
        """How long until a worker is to be started, or all are to be looked after."""
        now_ms = _now_ms()
        due = [worker.backoff.until_ms for worker in self._workers if worker.child is None]
        return max(0.0, (min([*due, now_ms + BEAT_MS]) - now_ms) / _MS_PER_S)

    def _sleep(self, timeout_s: float | None) -> None:
        """Wait for a signal, a child's news or its end, or for ``timeout_s``.

        Raises:
            _Stopped: A signal says to stop.
        """
        talking = [child.news for child in self._children if not child.silent]
        select.select([self._signals, *talking], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            came = os.read(self._signals, _SIGNALS_MAX)
            if self._stopping:
                return
            hung_up = signal.SIGHUP in came
            if any(number in came for number in STOP_SIGNALS) or (hung_up and self._terminal.closed):
                self._stopping = True
                ignore_from_now_on()
                raise _Stopped
            if hung_up:
                self._reload()

    def _reload(self) -> None:
        """Read the tokens anew, and tell all workers; one that is being started finds them by itself."""
        tokens = self._reloader.tokens()
        note_reload(self._audit, tokens)
        if tokens is not None:
            self.bulletin.post(tokens)
            for worker in self._workers:
                if worker.child is not None:
                    worker.child.signal(signal.SIGHUP)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
