"""What both variants have to show, each in a module of its own, so that they are tested side by side."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from examples.order_api.postgres import Postgres
from examples.order_api.processes import eventually
from examples.order_api.random_kills import kill_at_random
from examples.order_api.system import KINDS, Kind, System, Variant, system
from examples.order_api.windows import (
    Seen,
    after_the_commit,
    after_the_execution,
    after_the_outcome,
    before_the_commit,
    engine_dies,
    order_of,
)

KILLING_S: Final = min(60.0, int(os.environ.get("CRASH_ROUNDS", "4")) / 2)
"""About two kills a second, for a minute for each kind of engine at most."""

THEN: Final[dict[Kind, str]] = {"recognises": "succeeded", "status": "succeeded", "neither": "in_doubt"}
"""What becomes of an order whose execution nobody heard of."""

OF_THE_CLAIM: Final[dict[Kind, Callable[[System], Seen]]] = {
    "recognises": before_the_commit,
    "status": after_the_commit,
    "neither": after_the_outcome,
}


def surface(running: System) -> None:
    """One order however often it is sent, another payload refused, a refusal by the engine is an end."""
    order = order_of("SURFACE")
    first = running.post("surface", order)
    order_id = first.json()["order_id"]
    assert (first.status_code, first.headers["location"]) == (202, f"/orders/{order_id}")
    eventually(lambda: running.look(order_id)["state"] == "succeeded", "it is executed")
    shown = running.look(order_id)
    assert shown["order"] == order
    assert shown["outcome"].encode() == running.answer_of(shown["operation_id"])
    assert running.accepted("surface", order) == {"order_id": order_id, "state": "succeeded"}
    assert running.post("surface", order | {"quantity": "2"}).status_code == 422
    assert running.post("", order).status_code == 400
    assert running.post("no-account", {"symbol": "X"}).status_code == 400
    assert running.executed("SURFACE") == 1
    running.switch("refuse")
    refused = running.accepted("refused", order_of("REFUSED"))["order_id"]
    eventually(lambda: running.look(refused)["state"] == "failed", "the engine's no is an end")
    assert running.executed("REFUSED") == 0
    running.switch("fill")


def windows(variant: Variant, postgres: Postgres, folder: Path) -> None:
    """Those of the effect with every kind of engine; those of the claim, where it is all one, with one each."""

    def check(running: System) -> None:
        for window in (after_the_execution, engine_dies):
            seen = window(running)
            assert (seen.executions, seen.state, seen.replayed) == (1, THEN[running.kind], True), seen
        seen = OF_THE_CLAIM[running.kind](running)
        assert (seen.executions, seen.state, seen.replayed) == (1, "succeeded", True), seen

    _of_every_kind(variant, postgres, folder, check)


def killed_at_random(variant: Variant, postgres: Postgres, folder: Path, seed: int) -> None:
    """Whatever dies when: nothing twice, lost, denied or overtaken; where the engine can tell, all is settled."""

    def check(running: System) -> None:
        tally = kill_at_random(running, KILLING_S, seed)
        assert tally.broken == [], tally
        assert tally.kills > 0, tally
        assert tally.accepted == tally.asked > 0, tally
        if running.kind != "neither":
            assert tally.ended["succeeded"] == tally.once, tally
        print(f"{running.kind}: {tally.kills} kills, {tally.asked} orders, {tally.once} executed once, none twice")

    _of_every_kind(variant, postgres, folder, check)


def _of_every_kind(variant: Variant, postgres: Postgres, folder: Path, check: Callable[[System], None]) -> None:
    """Side by side: most of the time all of them wait for a lease to run out."""

    def one(kind: Kind) -> None:
        with system(variant, kind, postgres, folder / kind) as running:
            check(running)

    with ThreadPoolExecutor(len(KINDS)) as pool:
        for done in [pool.submit(one, kind) for kind in KINDS]:
            done.result()
