"""Callers that send orders and send them again, an engine in a bad mood, and somebody who kills at random meanwhile."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import httpx

from examples.order_api.processes import eventually
from examples.order_api.system import ENDED, System
from examples.order_api.windows import order_of

ACCOUNTS: Final = 6
PAUSE_S: Final = (0.05, 0.5)
"""Between two kills, at least and at most."""
SETTLE_S: Final = 60.0


@dataclass(slots=True)
class Tally:
    """What came of it; every list that is not empty is a broken promise.

    Attributes:
        seed: Makes the same kills at about the same moments.
        asked: Orders that somebody sent.
        accepted: Those that somebody was told are accepted.
        ended: How many ended how, or are in doubt, or wait behind one that is.
        once: Executed exactly once.
        twice: Executed more than once.
        lost: Said to have succeeded, and never executed.
        denied: Said to have failed, and executed.
        overtaken: Executed before an earlier one of the same account.
    """

    seed: int
    asked: int = 0
    accepted: int = 0
    kills: int = 0
    once: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    twice: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    overtaken: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """All that must not be."""
        return [*self.twice, *self.lost, *self.denied, *self.overtaken]


@dataclass(slots=True)
class _Caller:
    """Sends the orders of one account, one after the other, each until it is accepted."""

    system: System
    account: str
    asked: list[str] = field(default_factory=list)
    accepted: dict[str, str] = field(default_factory=dict)

    def run(self, until: float) -> None:
        while time.monotonic() < until:
            symbol = f"{self.account}/{len(self.asked)}"
            self.asked.append(symbol)
            self.accepted[symbol] = self._send(symbol)

    def _send(self, symbol: str) -> str:
        while True:
            try:
                answer = self.system.post(f"key-{symbol}", order_of(symbol, self.account), 2.0)
            except httpx.HTTPError:
                time.sleep(0.02)
                continue
            if answer.status_code == 202:
                order_id: str = answer.json()["order_id"]
                return order_id
            assert answer.status_code == 503, answer.text
            time.sleep(0.02)


def kill_at_random(system: System, seconds: float, seed: int) -> Tally:
    """Let callers send for so long while the API, the relay or idemactor, and the engine are killed; then add up."""
    tally, dice = Tally(seed), random.Random(seed)
    system.switch("chaos")
    until = time.monotonic() + seconds
    callers = [_Caller(system, f"account-{number}") for number in range(ACCOUNTS)]
    with ThreadPoolExecutor(ACCOUNTS) as pool:
        running = [pool.submit(caller.run, until) for caller in callers]
        while time.monotonic() < until:
            time.sleep(dice.uniform(*PAUSE_S))
            victim = dice.choice((system.api, system.deliverer, system.deliverer, system.engine))
            victim.restart()
            tally.kills += 1
            # The engine forgets its mood when it dies.
            system.switch("chaos")
        system.switch("fill")
        for done in running:
            done.result()
    shown = _settled(system, callers)
    _add_up(tally, callers, shown, system.executions())
    return tally


def _settled(system: System, callers: list[_Caller]) -> dict[str, dict[str, Any]]:
    """Every accepted order, once nothing moves any more."""
    shown: dict[str, dict[str, Any]] = {}

    def calm() -> bool:
        for caller in callers:
            blocked = False
            for symbol, order_id in caller.accepted.items():
                if symbol not in shown or shown[symbol]["state"] not in ENDED:
                    shown[symbol] = system.look(order_id)
                state = shown[symbol]["state"]
                # Where nobody can say what became of an order, it blocks those of its account until a person has.
                blocked = blocked or (state == "in_doubt" and system.kind == "neither")
                if state not in ENDED and not blocked:
                    return False
        return True

    eventually(calm, "every order has ended, is in doubt, or waits behind one that is", SETTLE_S)
    return shown


def _add_up(
    tally: Tally, callers: list[_Caller], shown: dict[str, dict[str, Any]], executions: list[dict[str, Any]]
) -> None:
    times = Counter(done["symbol"] for done in executions)
    tally.asked = sum(len(caller.asked) for caller in callers)
    tally.accepted = len(shown)
    tally.once = sum(number == 1 for number in times.values())
    tally.ended = Counter(found["state"] for found in shown.values())
    tally.twice = [f"{symbol} executed {number} times" for symbol, number in times.items() if number > 1]
    for symbol, found in shown.items():
        if found["state"] == "succeeded" and not times[symbol]:
            tally.lost.append(f"{symbol} succeeded, and was not executed")
        if found["state"] in ("failed", "expired") and times[symbol]:
            tally.denied.append(f"{symbol} {found['state']}, and was executed")
    for caller in callers:
        places = {done["symbol"]: done["number"] for done in reversed(executions)}
        line = [places[symbol] for symbol in caller.asked if symbol in places]
        tally.overtaken += [f"{caller.account}: {b} before {a}" for a, b in pairwise(line) if b < a]
