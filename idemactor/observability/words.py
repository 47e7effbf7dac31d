"""The words of commands and replies as callers see them, for metrics and traces alike."""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final = {"Doubted": "in_doubt", "Withdrawn": "released"}
"""Where the result that callers see is not the reply's name."""

_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


def snake(name: str) -> str:
    """The word of a command or a reply, from the name of its class."""
    if name in _WORDS:
        return _WORDS[name]
    return _CAPITAL.sub("_", name).lower()
