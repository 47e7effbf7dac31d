"""The crash windows, each made on purpose from outside: no program here has a switch to die at the right moment.

What kills is SIGKILL, of everything that accepts and delivers. Each function returns what was seen after the restart.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import httpx

from examples.order_api.processes import eventually
from examples.order_api.system import ENDED, LEASE_MS, RETRY_LONGEST_MS, SCAN_MS, System

LONG_ENOUGH_S: Final = (LEASE_MS + 2 * RETRY_LONGEST_MS + 2 * SCAN_MS) / 1000
"""After so long whoever would send an order again has done it."""

CALM_MS: Final = 250
"""So long before the next try nothing is under way."""

FAILURES_TO_OPEN: Final = 5
"""After so many tries in vain idemactor's circuit is open."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of one order.

    Attributes:
        executions: How often the engine executed it.
        replayed: Whether its retry got the same order, and the engine's answer byte for byte.
    """

    window: str
    executions: int
    state: str
    replayed: bool


def order_of(symbol: str, account: str = "") -> dict[str, str]:
    """An order that can be told from all others by its symbol; without a word, its account has no other."""
    return {"account": account or symbol, "symbol": symbol, "side": "buy", "quantity": "0.001"}


def before_the_commit(system: System) -> Seen:
    """The order was sent, and nothing of it was durable where it counts."""
    order = order_of("BEFORE")
    with _blocked(system), _sending(system, "before", order):
        eventually(lambda: _has_arrived(system, "before"), "the order has reached the API")
        system.api.kill()
        system.deliverer.kill()
    system.start()
    time.sleep(LONG_ENOUGH_S)
    assert system.executed("BEFORE") == 0, "an order was executed that nobody was told is accepted"
    return _seen(system, "before the first commit", "before", order)


def after_the_commit(system: System) -> Seen:
    """The order was accepted, and nothing was sent: its caller never comes back."""
    order = order_of("AFTER")
    system.engine.kill()
    order_id = system.accepted("after", order)["order_id"]
    # In vain, for now. Whoever dies in the middle of a try leaves a doubt behind, which is another window.
    eventually(partial(_rests, system, order_id, set()), "it waits for its next try")
    system.deliverer.kill()
    system.api.kill()
    system.engine.start()
    system.deliverer.start()
    # Without anyone asking, and without the API.
    eventually(lambda: system.executed("AFTER") == 1, "it is delivered after the restart")
    system.api.start()
    eventually(lambda: system.look(order_id)["state"] in ENDED, "its end is stored")
    return _seen(system, "after the commit, before delivery", "after", order)


def after_the_execution(system: System) -> Seen:
    """The engine executed the order, and whoever delivered it died before the answer came."""
    order = order_of("EXECUTED")
    system.switch("hang")
    order_id = system.accepted("executed", order)["order_id"]
    eventually(lambda: system.executed("EXECUTED") == 1, "it is executed")
    system.api.kill()
    system.deliverer.kill()
    system.switch("fill")
    system.start()
    _settled(system, order_id)
    return _seen(system, "after the execution, before its answer was stored", "executed", order)


def engine_dies(system: System) -> Seen:
    """The engine executed the order and died: whoever delivered it sees a connection that breaks."""
    order = order_of("DIES")
    system.switch("die")
    order_id = system.accepted("dies", order)["order_id"]
    eventually(lambda: not system.engine.alive, "the engine dies")
    system.engine.restart()
    system.switch("fill")
    _settled(system, order_id)
    return _seen(system, "the engine dies after the execution", "dies", order)


def after_the_outcome(system: System) -> Seen:
    """The outcome was stored, and its caller heard nothing."""
    order = order_of("OUTCOME")
    with _sending(system, "outcome", order):
        eventually(lambda: _stored(system, "outcome"), "its outcome is stored")
        system.api.kill()
        system.deliverer.kill()
    system.start()
    return _seen(system, "after the outcome was stored, before the caller heard", "outcome", order)


WINDOWS: Final[tuple[Callable[[System], Seen], ...]] = (
    before_the_commit,
    after_the_commit,
    after_the_execution,
    engine_dies,
    after_the_outcome,
)


@contextlib.contextmanager
def _blocked(system: System) -> Iterator[None]:
    """Whatever would make an order durable waits meanwhile, and comes to nothing."""
    if system.variant == "with_idemactor":
        system.deliverer.freeze()
        yield
        return
    with system.postgres.connect(system.database) as connection:
        connection.execute("BEGIN; LOCK TABLE orders IN EXCLUSIVE MODE")
        yield
        # A backend would notice only when it wants to answer that its client is gone.
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        connection.execute("ROLLBACK")


def _has_arrived(system: System, key: str) -> bool:
    if system.variant == "with_idemactor":
        # The row of what was asked is there; the dispatch comes next, and finds a server that does not answer.
        return bool(system.sql("SELECT 1 FROM orders WHERE key = %s", key))
    return bool(system.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"))


def _rests(system: System, order_id: str, attempts: set[int]) -> bool:
    """Whether nobody is about to try: ``attempts`` takes those that were seen so far."""
    wait_ms, attempt = system.next_try(order_id)
    # Once idemactor holds that the engine is down, it is in no hurry: right after a try it rests for half a second.
    just_tried = bool(attempts) and attempt not in attempts and attempt > FAILURES_TO_OPEN
    attempts.add(attempt)
    return wait_ms > CALM_MS or (wait_ms > float("-inf") and just_tried)


def _stored(system: System, key: str) -> bool:
    return bool(system.sql("SELECT 1 FROM orders WHERE key = %s AND outcome IS NOT NULL", key))


@contextlib.contextmanager
def _sending(system: System, key: str, order: dict[str, str]) -> Iterator[None]:
    """Somebody sends an order, and never hears of it."""

    def send() -> None:
        with contextlib.suppress(httpx.HTTPError):
            system.post(key, order)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join()


def _settled(system: System, order_id: str) -> None:
    """Wait until an order has ended; where nobody can know what became of it, until it would have been sent again."""
    if system.kind == "neither":
        eventually(lambda: system.look(order_id)["state"] == "in_doubt", "it is in doubt")
        time.sleep(LONG_ENOUGH_S)
        assert system.look(order_id)["state"] == "in_doubt"
    else:
        eventually(lambda: system.look(order_id)["state"] in ENDED, "its end is stored")


def _seen(system: System, window: str, key: str, order: dict[str, str]) -> Seen:
    """Send the order once more, wait for its end, and see."""
    again = system.accepted(key, order)["order_id"]
    eventually(lambda: system.look(again)["state"] in ENDED | {"in_doubt"}, "it has ended, or is in doubt")
    shown = system.look(again)
    same = system.accepted(key, order)["order_id"] == again
    stored = shown["state"] != "succeeded" or shown["outcome"].encode() == system.answer_of(shown["operation_id"])
    return Seen(window, system.executed(order["symbol"]), shown["state"], same and stored)
