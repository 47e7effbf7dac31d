"""An expiry storm: very many keys expire within a second while callers come at a steady rate."""

from __future__ import annotations

import shutil
import threading
import time
import urllib.request
from pathlib import Path
from typing import Final

from bench.fill import Filling, fill, set_time
from bench.harness import Result, Section, latencies_ms
from bench.load.run import carry_out
from bench.load.spec import Spec
from bench.plan import SHARDS, Bench
from bench.server import Server, serving

CALLS_PER_S: Final = 500.0
"""Of the callers, before and during the storm."""

CALLERS_S: Final = 1.0
"""How long the callers come between two looks whether it is over."""

START_S: Final = 1.0
"""How long the callers of the calm take to come and to go, beside the time for which they are watched."""

EARLY_S: Final = 0.2
"""How long before the storm its callers set out."""

LOOK_S: Final = 0.2
SPREAD_MS: Final = 1_000
HOUR_MS: Final = 3_600_000


def measure(bench: Bench) -> Section:
    """One directory is filled once, and each storm has a copy whose time begins just before it."""
    keys, filled = bench.plan.storm_keys, bench.scratch / "storm-filled"
    now_ms = time.time_ns() // 1_000_000
    expires_at = now_ms + HOUR_MS
    fill(Filling(str(filled), keys, SHARDS, (), now_ms, expires_at, SPREAD_MS))
    section = Section("expiry", f"Expiry storm: {keys:,} keys within a second")
    calm = Result("expiry/calm", f"calm: {CALLS_PER_S:.0f} reserves a second")
    storm = Result("expiry/storm", f"the storm, the same {CALLS_PER_S:.0f} reserves a second")
    for _ in range(bench.plan.storms):
        before, during = _storm(bench, filled, expires_at)
        calm.samples.append(before)
        storm.samples.append(during)
    shutil.rmtree(filled)
    section.results += [calm, storm]
    section.notes.append(
        f"`gone_s` counts from the first key's end until none of them is left; the callers' percentiles are those of"
        f" that time. Where they were not gone within {bench.plan.storm_s:.0f} s, `left` says how many stayed."
    )
    return section


def _storm(bench: Bench, filled: Path, expires_at: int) -> tuple[dict[str, float], dict[str, float]]:
    directory = bench.scratch / "storm"
    shutil.copytree(filled, directory)
    # A server's time goes on from the latest on disk where that is ahead of the wall clock.
    set_time(directory, expires_at - int((START_S + bench.plan.calm_s) * 1000))
    with serving(directory, shards=SHARDS) as server:
        begins = time.monotonic() + START_S + bench.plan.calm_s
        before = latencies_ms(_callers(server, bench.plan.calm_s))
        time.sleep(max(0.0, begins - EARLY_S - time.monotonic()))
        watch = _Watch(server, bench.plan.storm_keys)
        latencies: list[float] = []
        while watch.running and watch.elapsed_s() < bench.plan.storm_s:
            latencies += _callers(server, CALLERS_S)
        watch.stop()
    shutil.rmtree(directory)
    gone_s = watch.gone_s if watch.gone_s is not None else bench.plan.storm_s
    # The callers come at a steady rate: so many of the first of them came before it was over.
    during = {**latencies_ms(latencies[: int(gone_s * CALLS_PER_S)]), "gone_s": gone_s}
    return before, {**during, "left": float(watch.left), "keys": float(bench.plan.storm_keys)}


def _callers(server: Server, seconds: float) -> list[float]:
    outcomes = carry_out(Spec("rpc", server.rpc, "new", rate=CALLS_PER_S, seconds=seconds))
    return [latency for outcome in outcomes for latency in outcome.latencies_s]


class _Watch:
    """Looks how many keys are still there, from a thread, until none of the filled ones is.

    Attributes:
        gone_s: Seconds from the first end of a key until none was left; None: some are.
        left: How many there were at the last look.
    """

    def __init__(self, server: Server, keys: int) -> None:
        self.gone_s: float | None = None
        self.left = keys
        self._url = f"http://{server.http}/metrics"
        self._committed = keys
        self._began: float | None = None
        self._started = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether there is something left to see."""
        return self._thread.is_alive()

    def elapsed_s(self) -> float:
        """Since the watch began."""
        return time.monotonic() - self._started

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_S):
            left = _committed(self._url)
            now = time.monotonic()
            if left < self._committed and self._began is None:
                self._began = now - LOOK_S
            self.left = left
            if left == 0:
                self.gone_s = now - (self._began if self._began is not None else now)
                return


def _committed(url: str) -> int:
    """Committed keys by the server's own count: the callers' are pending, so that these are the filled ones."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("idemactor_committed{"))
