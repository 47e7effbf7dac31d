"""One call, answered."""

from __future__ import annotations

import os

from bench.load.protocols import RpcSpeaker
from bench.load.sockets import connect
from bench.processes import BenchError


def first_answer(address: str) -> None:
    """Reserve a new key over RPC.

    Raises:
        BenchError: The server refused.
    """
    speaker = RpcSpeaker()
    with connect(address) as sock:
        sock.sendall(speaker.reserve(1, b"first-" + os.urandom(8).hex().encode()))
        answers = list(speaker.read(sock.recv(65_536)))
        if [word for _, word, _ in answers] != ["reserved"]:
            raise BenchError(f"the first call was answered {answers}")
