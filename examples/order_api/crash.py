"""The crash driver: both variants, every window, three kinds of engine, then kills at random; and a table of it all.

python -m examples.order_api.crash [--variant postgres_alone] [--seconds 10] [--seed 1]

Exits with 1 where an order was executed twice, lost, denied or overtaken, or a retry got another answer.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from examples.order_api.postgres import Postgres, postgres
from examples.order_api.random_kills import Tally, kill_at_random
from examples.order_api.system import KINDS, VARIANTS, Kind, Variant, system
from examples.order_api.windows import WINDOWS, Seen

SAYS: Final[dict[Kind, str]] = {
    "recognises": "the engine recognises an operation's id: sent again until it says what became of it",
    "status": "the engine executes whatever it is sent, but can be asked: never sent again, asked",
    "neither": "the engine can neither: never sent again, in doubt until a person has found out",
}
ROW: Final = "  {:<56} {:>10}  {:<10} {}"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=VARIANTS, action="append")
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long to kill at random, per engine")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31))
    told = parser.parse_args()
    broken = []
    with postgres() as server, tempfile.TemporaryDirectory(prefix="order-api-") as name:
        for variant in told.variant or VARIANTS:
            for kind in KINDS:
                folder = Path(name) / variant / kind
                broken += show(variant, kind, *run(variant, kind, server, folder, told.seconds, told.seed))
    sys.exit("\n".join(broken) or 0)


def run(
    variant: Variant, kind: Kind, server: Postgres, folder: Path, seconds: float, seed: int
) -> tuple[Sequence[Seen], Tally]:
    """One variant with one kind of engine: all windows on one system, the random kills on another."""
    with system(variant, kind, server, folder / "windows") as running:
        seen = [window(running) for window in WINDOWS]
    with system(variant, kind, server, folder / "random") as running:
        return seen, kill_at_random(running, seconds, seed)


def show(variant: Variant, kind: Kind, seen: Iterable[Seen], tally: Tally) -> list[str]:
    """Print what was seen; returns what must not have been."""
    print(f"\n{variant}: {SAYS[kind]}")
    print(ROW.format("killed", "executions", "then", "retry"))
    broken = list(tally.broken)
    for one in seen:
        print(ROW.format(one.window, one.executions, one.state, "the same" if one.replayed else "ANOTHER ANSWER"))
        if one.executions != 1 or not one.replayed:
            broken.append(f"{variant}, {kind}, {one}")
    ended = ", ".join(f"{number} {state}" for state, number in sorted(tally.ended.items()))
    print(f"  {tally.kills} kills at random (--seed {tally.seed}): {tally.asked} orders asked,", end=" ")
    print(f"{tally.accepted} accepted,\n  {tally.once} executed once, {len(tally.twice)} twice; {ended};")
    print(f"  {len(tally.lost)} lost, {len(tally.denied)} denied, {len(tally.overtaken)} overtaken", flush=True)
    return broken


if __name__ == "__main__":
    main()
