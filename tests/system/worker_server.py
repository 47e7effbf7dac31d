"""A real server of several workers: which processes they are, and a client of each."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.system.clients import Answer, HttpClient, Lost, Members, RpcClient, RpcError
from tests.system.process import Server, eventually

AWAY = frozenset({"IDEMPOTENCY_UNAVAILABLE", "IDEMPOTENCY_OVERLOADED"})
"""What callers are told while a worker is away."""


class Workers(Server):
    """``Server`` with workers.

    Args:
        home: See ``Server``.
        workers: How many.
        config: See ``Server``; it has no ``[server]``.
        shards: Of a new directory.
        http: See ``Server``.
        rpc: See ``Server``.
        extra: See ``Server``.
    """

    def __init__(
        self,
        home: Path,
        workers: int,
        config: str = "",
        *,
        shards: int = 6,
        http: Sequence[str] = ("127.0.0.1:0",),
        rpc: Sequence[str] = ("127.0.0.1:0",),
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.workers = workers
        self._shards = shards
        super().__init__(home, config, http=http, rpc=rpc, extra=extra)

    def start(self, *, shards: int | None = None) -> Workers:
        self._environment["IDEMACTOR_SERVER__WORKERS"] = str(self.workers)
        super().start(shards=shards or self._shards)
        return self

    def __enter__(self) -> Workers:
        super().__enter__()
        return self

    @property
    def pids(self) -> list[int]:
        """The workers' processes, in no order."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def shard_map(self) -> Members:
        with self.rpc_client() as client:
            found: Members = client.request("shards", {})
            return found

    def direct(self, door: str) -> list[str]:
        """The address of each worker alone, in order."""
        return [worker[door][0] for worker in self.shard_map()["workers"]]

    @contextlib.contextmanager
    def rpc_clients(self) -> Iterator[list[RpcClient]]:
        """A client of each worker."""
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(RpcClient(address)) for address in self.direct("rpc")]

    def pid_of(self, worker: int) -> int:
        """The process of a worker: the one that listens on its socket, by what the log says of it."""
        found = [line for line in self.log.splitlines() if '"worker_ready"' in line and f'"worker": {worker},' in line]
        return int(found[-1].rpartition('"pid": ')[2].rstrip("}"))

    def kill_worker(self, worker: int) -> None:
        os.kill(self.pid_of(worker), signal.SIGKILL)

    def wait_whole(self) -> None:
        """Wait until every worker is there and says that every shard answers."""

        def whole() -> bool:
            with contextlib.suppress(Lost):
                addresses = self.direct("http")
                return all(HttpClient(address).get("/readyz").status == 200 for address in addresses)
            return False

        eventually(whole)


class PatientRpc(RpcClient):
    """Takes an answer that says that nobody knows for no answer at all."""

    def call(self, op: str, namespace: str = "default", **members: Any) -> Members:
        try:
            return super().call(op, namespace, **members)
        except RpcError as error:
            if error.code in AWAY:
                raise Lost(str(error)) from error
            raise


class PatientHttp(HttpClient):
    """The same over HTTP."""

    def call(self, op: str, namespace: str = "default", **members: Any) -> Answer:
        answer = super().call(op, namespace, **members)
        if answer.code in AWAY:
            raise Lost(str(answer.code))
        return answer


def is_alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended and that nobody waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
