"""A real ``idemactor serve`` for a test: started, killed, restarted on the same data, told to stop."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.system.clients import HttpClient, RpcClient

START_S: Final = 30.0
"""How long a server may take to say that it is ready; only a broken one, or a starved machine, comes near."""
STOP_S: Final = 40.0
"""How long a server may take to drain."""
READY: Final = "idemactor ready "


class StartRefused(Exception):
    """The server ended instead of coming up.

    Attributes:
        code: Its exit code.
        said: What it wrote to standard error.
    """

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"exit code {code}: {said}")
        self.code = code
        self.said = said


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without any setting of the server's, and ``extra``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("IDEMACTOR_")}
    kept["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    return kept | dict(extra or {})


class Server:
    """One data directory and the process that serves it, time after time.

    Args:
        home: Where the data directory, the configuration and the log of this server are.
        config: The text of its configuration file.
        http: Addresses of the HTTP door; none: the configuration's.
        rpc: The same for RPC.
        flags: Further flags.
        extra: Further environment variables.
        prefix: A command to run the server under.
        data_dir: Where its data are, if not below ``home``; the empty text leaves the flag out.
        module: What Python runs.
        pass_fds: Descriptors that the process inherits, under their numbers.
    """

    def __init__(
        self,
        home: Path,
        config: str = "",
        *,
        http: Sequence[str] = ("127.0.0.1:0",),
        rpc: Sequence[str] = ("127.0.0.1:0",),
        flags: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        data_dir: Path | str | None = None,
        module: str = "idemactor",
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.home = home
        self.data_dir = home / "data" if data_dir is None else Path(data_dir)
        self.config_path = home / "server.toml"
        self.config_path.write_text(config)
        self.log_path = home / "server.log"
        self.ready_line = ""
        self._command = [*prefix, sys.executable, "-m", module, "serve", "--config", str(self.config_path)]
        if data_dir != "":
            self._command += ["--data-dir", str(self.data_dir)]
        for address in http:
            self._command += ["--http", address]
        for address in rpc:
            self._command += ["--rpc", address]
        self._command += flags
        self._environment = environment(extra)
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[str] | None = None
        self._up = threading.Event()
        # A test that fails between start and stop must not leave a server behind.
        atexit.register(self.kill)

    def __enter__(self) -> Server:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    # ------------------------------------------------------------------------------------------------------ life, death

    def start(self, *, shards: int | None = None) -> Server:
        """Start it and wait until it is ready.

        Raises:
            StartRefused: It ended instead.
        """
        begin = self._spawn([] if shards is None else ["--shards", str(shards)])
        assert self._process is not None
        self.ready_line = _first_line(self._process)
        if not self.ready_line.startswith(READY):
            code = self._process.wait(STOP_S)
            self._forget()
            raise StartRefused(code, self.log_path.read_bytes()[begin:].decode())
        self._up.set()
        return self

    def start_and_kill(self, after_s: float) -> None:
        """SIGKILL while it is still starting, or just has."""
        self._spawn([])
        time.sleep(after_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash does it; harmless where nothing runs."""
        if self._process is not None:
            self._up.clear()
            self._process.kill()
            self._process.wait()
            self._forget()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._up.clear()
        self._forget()
        return code

    def terminate(self) -> int:
        """SIGTERM; its exit code once it has ended."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def restart(self) -> Server:
        """SIGKILL, then start on the same data."""
        self.kill()
        return self.start()

    def wait_up(self, timeout_s: float = START_S) -> bool:
        """Wait until it is up; whether it is."""
        return self._up.wait(timeout_s)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _spawn(self, more: Sequence[str]) -> int:
        """Start the process; where in the log it will begin to write."""
        assert self._process is None
        with self.log_path.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                [*self._command, *more],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                cwd=self.home,
                pass_fds=self._pass_fds,
            )
        return begin

    def _forget(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    # -------------------------------------------------------------------------------------------------------- addresses

    def addresses(self, door: str) -> list[str]:
        """What the ready line names for ``http`` or ``rpc``, in order."""
        words = dict(word.split("=", 1) for word in self.ready_line.removeprefix(READY).split())
        return words.get(door, "").split(",")

    @property
    def http(self) -> str:
        return self.addresses("http")[0]

    @property
    def rpc(self) -> str:
        return self.addresses("rpc")[0]

    def http_client(self, timeout_s: float = 10.0) -> HttpClient:
        return HttpClient(self.http, timeout_s)

    def rpc_client(self, timeout_s: float = 10.0) -> RpcClient:
        return RpcClient(self.rpc, timeout_s)

    @property
    def log(self) -> str:
        """All that its processes ever wrote to standard error."""
        return self.log_path.read_text(errors="replace")


def assert_calm(server: Server) -> None:
    """Fails where the server logged an error, or said anything that is no line of its log."""
    for line in server.log.splitlines():
        assert line.startswith("{"), line
        assert json.loads(line)["level"] in {"debug", "info", "warning"}, line


def _first_line(process: subprocess.Popen[str]) -> str:
    """The first line of standard output; empty where it ended, or said nothing in time."""
    assert process.stdout is not None
    timer = threading.Timer(START_S, process.kill)
    timer.start()
    try:
        return process.stdout.readline().strip()
    finally:
        timer.cancel()


def run_check(data_dir: Path) -> subprocess.CompletedProcess[str]:
    """``idemactor check`` on a directory that no server has open."""
    command = [sys.executable, "-m", "idemactor", "check", str(data_dir)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)


def assert_clean(data_dir: Path) -> None:
    """Fails where ``idemactor check`` finds anything."""
    checked = run_check(data_dir)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "clean" in checked.stdout


def refused(server: Server) -> StartRefused:
    """Why a server does not start; fails where it does, and where it answers with a traceback."""
    refusal = None
    try:
        server.start()
    except StartRefused as error:
        refusal = error
    server.kill()
    assert refusal is not None, f"it came up: {server.ready_line}"
    assert "Traceback" not in refusal.said, refusal.said
    assert refusal.said.strip(), "it ended without a word"
    return refusal


def eventually(check: Callable[[], bool], timeout_s: float = 10.0, every_s: float = 0.02) -> None:
    """Wait until ``check()`` is true; fails where it does not come to be."""
    end = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < end, "it did not come to be in time"
        time.sleep(every_s)
