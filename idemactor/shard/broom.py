"""Who does alarm work now: one shard of a process at a time.

The alarms of all shards tend to come due at the same moment, those of a million keys that were made together for one.
Were every shard to work them off at once, a caller would wait behind a step of each; so there is one broom, which goes
from shard to shard, and a caller waits behind one step. Without it a shard deals with as many alarms as commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Broom:
    """Held by the shard that does a step of alarm work. Not thread-safe: one event loop owns it."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, handed: Callable[[], None]) -> bool:
        """Take it if nobody has it; otherwise it is handed over in the order of asking.

        Args:
            handed: Called once the broom is its caller's, who then has to give it back. It must neither block nor
                raise.
        """
        if self._held:
            self._waiting.append(handed)
            return False
        self._held = True
        return True

    def give_back(self) -> None:
        """Whoever has waited longest has it now."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._held = False

    def stop_waiting(self, handed: Callable[[], None]) -> None:
        """Do not hand it to somebody who waits."""
        self._waiting.remove(handed)
