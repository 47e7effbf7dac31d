"""Inputs that nobody would send, made from those that somebody would, and what does something new is kept.

A target is a function of bytes that returns in a few words what became of them ("refused: too deep"), and raises where
something went wrong. Words that were not seen before make their input a parent of others: coverage for the poor, which
needs no instrumented build. The corpus, one file an input, is replayed first; what fails is written there, so that the
next run begins with it.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

SECONDS: Final = float(os.environ.get("FUZZ_SECONDS", "1.5"))
"""How long each target is tried; ``make fuzz`` gives it minutes."""
KEEP: Final = os.environ.get("FUZZ_KEEP") == "1"
"""Whether what does something new is written to the corpus."""
CORPUS: Final = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX: Final = 16_384
KEPT_BYTES_MAX: Final = 2_048
KEPT_MAX: Final = 40
"""How many inputs of a target, and how large ones, are kept for what they did that was new; what failed always is."""
GROWTH_BYTES_MAX: Final = 256 * 1024 * 1024
"""How much larger the process may have become by a target; its own pool of inputs is a hundredth of that."""
INPUT_SECONDS_MAX: Final = 2.0
PARENTS_MAX: Final = 2_000

Target = Callable[[bytes], str]

_NUMBERS: Final = (0, 1, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1)


def seeded() -> tuple[random.Random, int]:
    """A generator, and its seed, which is printed; ``FUZZ_SEED`` replays one."""
    seed = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    print(f"replay with FUZZ_SEED={seed}")
    return random.Random(seed), seed


def fuzz(name: str, target: Target, samples: Sequence[bytes], words: Sequence[bytes] = ()) -> dict[str, int]:
    """Try ``target``; returns how often it said what.

    Args:
        name: Its folder in the corpus.
        samples: Inputs that make sense.
        words: Pieces that mean something to it.
    """
    rng, seed = seeded()
    said: dict[str, int] = {}
    folder = CORPUS / name
    stored = [path.read_bytes() for path in sorted(folder.glob("*.bin"))]
    parents = [*stored, *samples]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in list(parents):
        _note(said, _tried(target, data, folder, seed))
    end = time.monotonic() + SECONDS
    tries = 0
    while time.monotonic() < end:
        tries += 1
        data = mutated(rng, parents, words)
        if _note(said, _tried(target, data, folder, seed)) and len(parents) < PARENTS_MAX:
            parents.append(data)
            if KEEP and len(data) <= KEPT_BYTES_MAX and len(list(folder.glob("*.bin"))) < KEPT_MAX:
                _store(folder, data)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"{name}: {len(stored)} from the corpus, {tries} mutated, {len(said)} ways to end")
    assert grown < GROWTH_BYTES_MAX, f"{name} made the process {grown} bytes larger"
    return said


def mutated(rng: random.Random, parents: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """One of ``parents`` with a few things done to it."""
    data = bytearray(rng.choice(parents))
    for _ in range(rng.choice((1, 1, 2, 3, 5, 8))):
        _mutate(rng, data, parents, words)
    return bytes(data[:INPUT_BYTES_MAX])


def _mutate(rng: random.Random, data: bytearray, parents: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 32)))
    match rng.randrange(8):
        case 0:
            data[at : at + 1] = bytes((rng.randrange(256),))
        case 1:
            if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = bytes(data[at:end]) * rng.choice((1, 1, 2, 50))
        case 4 if words:
            data[at:at] = rng.choice(words)
        case 5 if words:
            data[at:end] = rng.choice(words)
        case 6:
            number = rng.choice(_NUMBERS)
            data[at:end] = str(number).encode() if rng.random() < 0.5 else number.to_bytes(8, "big")
        case _:
            other = rng.choice(parents)
            start = rng.randrange(len(other) + 1)
            data[at:] = other[start:]


def _tried(target: Target, data: bytes, folder: Path, seed: int) -> str:
    started = time.perf_counter()
    try:
        words = target(data)
    except Exception as error:
        path = _store(folder, data)
        raise AssertionError(f"{path} ends in {type(error).__name__}: {error}; FUZZ_SEED={seed}") from error
    seconds = time.perf_counter() - started
    if seconds >= INPUT_SECONDS_MAX:
        raise AssertionError(f"{_store(folder, data)} takes {seconds:.1f} s; FUZZ_SEED={seed}")
    return words


def _store(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
    path.write_bytes(data)
    return path


def _note(said: dict[str, int], words: str) -> bool:
    """Whether that is new."""
    new = words not in said
    said[words] = said.get(words, 0) + 1
    return new
