"""Where the relays of the simulator deliver to: two services that every node and every relay outlives.

``safe`` recognises the ids of operations and does each once, whatever comes; ``blind`` does whatever comes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from idemactor.core.keys import Identity

SAFE: Final = "safe"
BLIND: Final = "blind"
FLIGHT_S: Final = 0.1
"""The longest that a request is under way."""
PATIENCE_S: Final = 0.06
"""How long a relay waits for an answer: some come later, and so do some requests."""


class Said(enum.Enum):
    """What a destination answered."""

    DONE = "done"
    REFUSED = "refused before anything was done"
    FAILED = "definitely not done"


@dataclass(frozen=True)
class Execution:
    """Something was done."""

    stamp: int
    identity: Identity
    operation_id: str
    order_key: str | None


@dataclass
class Destination:
    """Both services, and the network before them.

    Attributes:
        nursery: Requests under way live there: no relay can call one back.
        calm: Nothing goes wrong any more.
    """

    rng: Random
    nursery: trio.Nursery | None = None
    calm: bool = False
    executions: list[Execution] = field(default_factory=list)
    answers: dict[str, Said] = field(default_factory=dict)

    async def receive(self, identity: Identity, operation_id: str, order_key: str | None) -> Said | None:
        """Send a request; None where no answer came in time, and nobody knows what became of it."""
        assert self.nursery is not None
        answer: list[Said] = []
        there = trio.Event()
        self.nursery.start_soon(self._arrive, identity, operation_id, order_key, answer, there)
        with trio.move_on_after(PATIENCE_S):
            await there.wait()
        return answer[0] if answer else None

    def status(self, operation_id: str) -> Said | None:
        """What became of an operation; None: nothing is known of it."""
        return self.answers.get(operation_id)

    async def _arrive(
        self, identity: Identity, operation_id: str, order_key: str | None, answer: list[Said], there: trio.Event
    ) -> None:
        rng = self.rng
        lost, silent = rng.random() < 0.08, rng.random() < 0.2
        await trio.sleep(0.001 if self.calm else rng.choice((0, 0.003, 0.02, rng.random() * FLIGHT_S)))
        if lost and not self.calm:
            return
        said = self._do(identity, operation_id, order_key)
        if self.calm or not silent:
            answer.append(said)
            there.set()

    def _do(self, identity: Identity, operation_id: str, order_key: str | None) -> Said:
        roll = 1.0 if self.calm else self.rng.random()
        if roll < 0.3:
            # Who has too much to do says so before it looks.
            return Said.REFUSED
        known = self.answers.get(operation_id)
        if known is not None and identity.namespace == SAFE:
            return known
        said = Said.FAILED if roll < 0.36 else Said.DONE
        self.answers[operation_id] = said
        if said is Said.DONE:
            self.executions.append(Execution(len(self.executions), identity, operation_id, order_key))
        return said
