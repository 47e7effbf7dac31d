"""How far a long piece of work has come."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Is told now and then; what it does must be quick."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """``done`` of ``total`` of ``what`` are behind us; ``total`` may be an estimate."""


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""
