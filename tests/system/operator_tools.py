"""What the tests of the operator's tools share: running them, killing them, and callers that remember what they were
told."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.system.clients import RpcClient
from tests.system.process import Server, environment

TOOL_S: Final = 60.0
INTERRUPTED: Final = 130
CONFIG: Final = """
[server]
shards = 3
[namespaces.default]
ttl_ms = 86400000
[namespaces.trade]
ttl_ms = 86400000
[namespaces.work]
ttl_ms = 86400000
"""


@dataclass(frozen=True)
class Done:
    """How a tool ended."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> Any:
        """Its report."""
        return json.loads(self.out)


def tool(*arguments: object, feed: bytes | None = None) -> Done:
    """Run ``idemactor`` to its end."""
    command = [sys.executable, "-m", "idemactor", *map(str, arguments)]
    done = subprocess.run(command, input=feed, capture_output=True, env=environment(), timeout=TOOL_S, check=False)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def worked(*arguments: object, feed: bytes | None = None) -> Any:
    """The report of a tool that has to succeed."""
    done = tool(*arguments, "--json", feed=feed)
    assert done.code == 0, done
    return done.told


def killed_after(after_s: float, number: signal.Signals, arguments: Sequence[object]) -> None:
    """Run ``idemactor`` and send it a signal after a while; fails where it ends otherwise than it should."""
    command = [sys.executable, "-m", "idemactor", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()) as process:
        time.sleep(after_s)
        if number is not signal.SIGKILL:
            _wait_for_first_line(process)
        process.send_signal(number)
        said, _ = process.communicate(timeout=TOOL_S)
    assert process.returncode in (0, -signal.SIGKILL, INTERRUPTED), (process.returncode, said.decode())
    assert b"Traceback" not in said, said.decode()
    assert b"Aborted" not in said


def _wait_for_first_line(process: subprocess.Popen[bytes]) -> None:
    """Until Python itself has started: before the first line of the program, it ends as any program does."""
    until = time.monotonic() + TOOL_S
    while process.poll() is None and time.monotonic() < until:
        try:
            status = dict(line.split(":\t") for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
            heeded = int(status["SigCgt"], 16) | int(status["SigIgn"], 16)
        except (FileNotFoundError, ProcessLookupError, KeyError):
            return
        if heeded >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


@dataclass
class Callers:
    """Callers that commit, and some that hold on to what they were granted.

    Attributes:
        committed: By key, its token and outcome, and when the answer was there, milliseconds since the epoch.
        held: By key, the token of one that was granted and not ended.
    """

    server: Server
    committed: dict[str, tuple[int, bytes, int]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self, count: int = 3, prefix: str = "") -> Iterator[None]:
        """While it lasts, they call."""
        stop = threading.Event()
        threads = [threading.Thread(target=self._work, args=(stop, f"{prefix}{number}")) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        if self.failures:
            raise self.failures[0]

    def _work(self, stop: threading.Event, name: str) -> None:
        try:
            with self.server.rpc_client() as client:
                number = 0
                while not stop.is_set():
                    number += 1
                    self.call(client, f"{name}-{number}")
        except BaseException as error:
            self.failures.append(error)

    def call(self, client: RpcClient, key: str) -> None:
        """One key from beginning to end, or half-way."""
        granted = client.call("reserve", key=key, lease_ms=3_600_000)
        if random.random() < 0.1:
            self.held[key] = granted["token"]
            return
        body = random.randbytes(random.randrange(300))
        client.call("commit", key=key, token=granted["token"], outcome={"status": 201, "body": body})
        self.committed[key] = (granted["token"], body, time.time_ns() // 1_000_000)

    def still_there(self, server: Server, until_ms: int) -> int:
        """Fails where something is lost that was acknowledged before; returns how many there were."""
        found = 0
        with server.rpc_client() as client:
            for key, (token, body, at_ms) in self.committed.items():
                record = client.call("get", key=key).get("record")
                if at_ms < until_ms:
                    assert record is not None, f"{key} is lost"
                    assert record["state"] == "committed", f"the commit of {key} is lost"
                    found += 1
                if record is not None and record["state"] == "committed":
                    assert (record["token"], record["outcome"]["body"]) == (token, body)
        return found

    @property
    def highest(self) -> int:
        """The highest token that anybody was granted."""
        return max([token for token, _, _ in self.committed.values()] + list(self.held.values()))


def every_grant_is_above(server: Server, token: int, count: int = 60) -> None:
    """In every shard: 60 keys leave none out, but for once in 10^10."""
    with server.rpc_client() as client:
        for number in range(count):
            granted = client.call("reserve", key=f"new-{number}-{time.time_ns()}")
            assert granted["token"] > token


def lines_of(path: Path) -> dict[str, Any]:
    """What an export of a directory says, by key."""
    done = tool("export", path)
    assert done.code == 0, done
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert (lines[0]["type"], lines[-1]["type"]) == ("export", "end")
    return {line["identity"]["key"]: line for line in lines if line["type"] == "entry"}
