"""What a load generator is told to do, and what it says afterwards."""

from __future__ import annotations

import json
from array import array
from dataclasses import asdict, dataclass
from typing import Final, Literal

Mode = Literal["new", "cycle", "hot"]
"""Reserve new keys; reserve and then commit each; reserve one key that is committed already."""

CONNECTIONS_DEFAULT: Final = 32
_HEAD: Final = ("seconds", "cpu_s", "in_time", "refused", "unanswered")


@dataclass(frozen=True, slots=True)
class Spec:
    """One load.

    Attributes:
        protocol: A name of ``protocols.SPEAKERS``.
        address: ``host:port`` or ``unix:/path``.
        mode: See ``Mode``.
        connections: How many.
        in_flight: Calls under way on each; 0: as many as it takes to keep up ``rate``.
        rate: Calls a second where the load is open, 0 where it is closed.
        seconds: For how long.
        keys: A file with a key on each line to use instead of keys made up, "" for none.
    """

    protocol: str
    address: str
    mode: Mode = "new"
    connections: int = CONNECTIONS_DEFAULT
    in_flight: int = 1
    rate: float = 0.0
    seconds: float = 1.0
    keys: str = ""

    def to_json(self) -> str:
        """For the command line of a generator."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """The reverse."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a load: one line of JSON, then the latencies as doubles.

    Attributes:
        seconds: How long calls were counted.
        cpu_s: CPU seconds that the generator took for it: where they reach ``seconds`` it was the limit itself.
        in_time: How many calls were answered while the load lasted.
        refused: Calls that were answered with an error.
        unanswered: Calls that had no answer when the load was over and gone.
        latencies_s: Of those that were answered as they should be.
    """

    seconds: float
    cpu_s: float
    in_time: int
    refused: int
    unanswered: int
    latencies_s: array[float]

    def to_bytes(self) -> bytes:
        """For standard output."""
        head = {field: getattr(self, field) for field in _HEAD}
        return json.dumps(head).encode() + b"\n" + self.latencies_s.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Outcome:
        """The reverse."""
        head, _, body = data.partition(b"\n")
        latencies: array[float] = array("d")
        latencies.frombytes(body)
        return cls(**json.loads(head), latencies_s=latencies)
