"""PostgreSQL with ``synchronous_commit = on``: a transaction is on disk before its answer leaves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench.harness import sample_of
from bench.peers.install import postgres_programs, program
from bench.processes import BenchError, accepts, free_port, output_of, running, wait_until

Script = Literal["new", "cycle", "hot"]

USER: Final = "bench"
NOBODY: Final = "nobody"
"""PostgreSQL refuses to run as root."""

TABLE: Final = """
CREATE TABLE deduplication (
    key text PRIMARY KEY, token bigint NOT NULL, state text NOT NULL, expires_at timestamptz NOT NULL);
INSERT INTO deduplication VALUES ('hot', 1, 'committed', now() + interval '1 day');
"""

_INSERT: Final = (
    "INSERT INTO deduplication VALUES ({key}, :token, 'pending', now() + interval '1 hour')"
    " ON CONFLICT (key) DO NOTHING;\n"
)
_RANDOM: Final = "\\set token random(1, 1000000000000000)\n"
_NEW: Final = _RANDOM + _INSERT.format(key="'key-' || :token::text")
_SCRIPTS: Final[dict[Script, str]] = {
    "new": _NEW,
    "cycle": _NEW
    + "UPDATE deduplication SET state = 'committed' WHERE key = 'key-' || :token::text AND token = :token;\n",
    "hot": _RANDOM + _INSERT.format(key="'hot'") + "SELECT state FROM deduplication WHERE key = 'hot';\n",
}
_CALLS: Final[dict[Script, int]] = {"new": 1, "cycle": 2, "hot": 1}
"""How many calls of idemactor one transaction of a script stands for."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A PostgreSQL server that runs."""

    port: int
    directory: Path

    @property
    def conninfo(self) -> str:
        """For psycopg."""
        return f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres"

    def benchmark(self, script: Script, connections: int, in_flight: int, seconds: float) -> dict[str, float]:
        """Run pgbench for ``seconds``; ``in_flight`` beyond 1 makes pipelines of so many statements, one commit each.

        A pipeline without a BEGIN is one transaction: that is the fastest PostgreSQL can be asked to be.
        """
        scratch = self.directory / "pgbench"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        body = _SCRIPTS[script]
        if in_flight > 1:
            body = "\\startpipeline\n" + body * in_flight + "\\endpipeline\n"
        (scratch / "script.sql").write_text(body)
        # pgbench takes whole seconds.
        command = [str(postgres_programs() / "pgbench"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER]
        command += ["-n", "-M", "prepared", "-c", str(connections), "-j", "1", "-T", str(max(1, round(seconds)))]
        command += ["-f", "script.sql", "-l", "postgres"]
        output = output_of(command, cwd=scratch)
        figures = sample_of(_latencies_s(scratch), 1.0)
        tps = next(line.split()[2] for line in output.splitlines() if line.startswith("tps = "))
        figures["ops_per_s"] = float(tps) * in_flight * _CALLS[script]
        return figures


def _latencies_s(logs: Path) -> list[float]:
    """The time of each transaction (pgbench's manual, "Per-Transaction Logging": the third field, microseconds)."""
    files = list(logs.glob("pgbench_log.*"))
    return [int(line.split()[2]) / 1e6 for file in files for line in file.read_text().splitlines()]


@contextlib.contextmanager
def postgres(directory: Path) -> Iterator[Postgres]:
    """Make a cluster in ``directory``, start a PostgreSQL on it and stop it in the end.

    Raises:
        BenchError: It cannot be installed or did not come up.
    """
    directory.mkdir(mode=0o700)
    data, log, port = directory / "data", directory.with_name(directory.name + ".log"), free_port()
    as_user = _as_user(directory)
    programs = postgres_programs()
    initdb = [*as_user, str(programs / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8"]
    output_of([*initdb, "--no-locale"], cwd=directory)
    command = [*as_user, str(programs / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1"]
    command += ["-k", "", "-c", "synchronous_commit=on", "-c", "fsync=on", "-c", "max_connections=400"]
    # The defaults for memory and checkpoints are those of a machine of 20 years ago.
    command += ["-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB"]
    with running(command, log=log, stop_with=signal.SIGINT) as process:
        wait_until(lambda: accepts(port), process, log)
        psql = [str(programs / "psql"), "-h", "127.0.0.1", "-p", str(port), "-U", USER, "-q", "-d", "postgres"]
        wait_until(lambda: _answers(psql), process, log)
        output_of([*psql, "-c", TABLE])
        # What pgbench leaves is ours and not the server's.
        scratch = directory.with_name(directory.name + ".pgbench")
        scratch.mkdir()
        yield Postgres(port, scratch)


def _answers(psql: list[str]) -> bool:
    with contextlib.suppress(BenchError):
        output_of([*psql, "-c", "SELECT 1"])
        return True
    return False


def _as_user(directory: Path) -> list[str]:
    if os.geteuid() != 0:
        return []
    shutil.chown(directory, NOBODY)
    # Changing the user drops the wish to die with the parent; setpriv asks for it again.
    ids = [f"--reuid={NOBODY}", "--regid=nogroup", "--clear-groups", "--pdeathsig=INT"]
    return [str(program("setpriv")), *ids]
