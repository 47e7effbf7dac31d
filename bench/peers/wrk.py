"""wrk, the load generator for HTTP, with a script for what it sends."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bench.peers.install import program
from bench.processes import BenchError, output_of

Mode = Literal["new", "cycle", "hot"]

HOT_KEY: Final = "hot"
"""As in the script."""

SCRIPT: Final = Path(__file__).with_name("wrk.lua")


@dataclass(frozen=True, slots=True)
class HttpPeer:
    """An HTTP server to load, ``host:port``, and where it has reserve and commit.

    Attributes:
        refuses_duplicates: It answers a committed key with 409 and not with 200.
    """

    address: str
    paths: tuple[str, str]
    refuses_duplicates: bool

    def settle(self, key: str) -> None:
        """Reserve and commit a key, if nobody did before."""
        connection = http.client.HTTPConnection(self.address)
        answer = self._post(connection, self.paths[0], {"key": key})
        if answer.get("result") == "reserved":
            self._post(connection, self.paths[1], {"key": key, "token": answer["token"]})
        connection.close()

    def _post(self, connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer


def wrk(peer: HttpPeer, mode: Mode, connections: int, in_flight: int, seconds: float) -> dict[str, float]:
    """Load an HTTP server; beyond 1 ``in_flight`` is HTTP pipelining, without latencies.

    Raises:
        BenchError: wrk failed, or an answer was not what it should be.
    """
    if mode == "hot":
        peer.settle(HOT_KEY)
    # wrk takes whole seconds.
    command = [str(program("wrk")), "-t", "1", "-c", str(connections), "-d", str(max(1, round(seconds)))]
    command += ["-s", str(SCRIPT), f"http://{peer.address}", "--", mode, str(in_flight), *peer.paths]
    said = json.loads(output_of(command).rpartition("\nFIGURES ")[2])
    refused = 0 if mode == "hot" and peer.refuses_duplicates else said["refused"]
    if said["errors"] or refused or not said["answers"]:
        raise BenchError(f"{said} of {peer.address} to {mode}: answers went wrong")
    figures = {"ops_per_s": said["answers"] / said["seconds"]}
    if in_flight > 1:
        # wrk takes the time of a pipeline as a whole, and of few of them.
        return figures
    return {**figures, **{f"{name}_ms": said[f"{name}_us"] / 1000 for name in ("p50", "p99", "p999")}}
