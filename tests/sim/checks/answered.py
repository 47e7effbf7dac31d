"""Every caller that stayed was answered, or lost its connection to a crash."""

from __future__ import annotations

from tests.sim.history import History


def check(history: History) -> list[str]:
    """Who was left without a word."""
    return [f"never answered: {op}" for op in history.ops if op.answered is None and not op.closed]
