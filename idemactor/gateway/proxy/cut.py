"""The moment from which on nothing more is awaited: a drain names it, for everything that is under way by then."""

from __future__ import annotations

import math
from typing import Final

import trio

_MS_PER_S: Final = 1_000


class Cut:
    """Ends what was begun under it. Until ``after`` is called there is no end."""

    def __init__(self) -> None:
        self._at = math.inf
        self._scopes: set[trio.CancelScope] = set()

    def after(self, within_ms: float) -> None:
        """End what is under way, and whatever else begins, in ``within_ms`` milliseconds; of two moments the earlier.

        What begins later than that is cancelled from its beginning.
        """
        self._at = min(self._at, trio.current_time() + within_ms / _MS_PER_S)
        for scope in self._scopes:
            scope.deadline = self._at

    def begin(self) -> trio.CancelScope:
        """A scope that ends in time; whoever gets it calls ``ended`` in the end."""
        scope = trio.CancelScope(deadline=self._at)
        self._scopes.add(scope)
        return scope

    def ended(self, scope: trio.CancelScope) -> None:
        """It is not needed any more."""
        self._scopes.discard(scope)
