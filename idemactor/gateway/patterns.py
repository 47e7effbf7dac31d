"""Whether a regular expression keeps a secret apart: what a group matched is cut out of the text by its span.

That works where the group's last match is all of it, and where nothing else that has a name, or is matched again, has
any of it. What can be anything else is refused when the source is made, whatever a text would do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from re import _parser  # type: ignore[attr-defined]  # The one reader of expressions that reads them as `re` does.
from typing import Any, Final

_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_LOOKS: Final = frozenset({"ASSERT", "ASSERT_NOT"})


@dataclass(frozen=True, slots=True)
class _Place:
    """Where something stands in an expression.

    Attributes:
        groups: The numbers of the groups around it.
        repeated: Whether it may match more than once.
        looked: Whether it is in a look-ahead or look-behind, and so may match what something else matches too.
    """

    groups: frozenset[int] = frozenset()
    repeated: bool = False
    looked: bool = False


def why_not_apart(pattern: re.Pattern[str], secrets: Collection[str]) -> str | None:
    """Why ``pattern`` does not keep what its groups ``secrets`` match apart from everything else; None: it does.

    Args:
        pattern: One that compiles.
        secrets: Names of groups; those that it does not have do not matter.
    """
    names = {number: name for name, number in pattern.groupindex.items()}
    wanted = {number: name for number, name in names.items() if name in secrets}
    if not wanted:
        return None
    for what, number, place in _walk(_parser.parse(pattern.pattern, pattern.flags), _Place()):
        if what == "GROUPREF" and number in wanted:
            return (
                f"the group {wanted[number]} is a secret, and what it matched is matched again: (?P={wanted[number]})"
            )
        if what == "GROUP" and number in names:
            why = _why(number, place, names, wanted)
            if why is not None:
                return why
    return None


def _why(number: int, place: _Place, names: dict[int, str], wanted: dict[int, str]) -> str | None:
    around = [names[group] for group in place.groups if group in names]
    if place.looked:
        return f"beside a secret no group may be in a look-ahead or look-behind, and {names[number]} is"
    if number in wanted and place.repeated:
        return f"the group {names[number]} is a secret and repeated: only what it matched last would be left out"
    if number in wanted and around:
        return f"the group {names[number]} is a secret within the group {around[0]}"
    holder = next((wanted[group] for group in place.groups if group in wanted), None)
    return None if holder is None else f"the group {holder} is a secret, and the group {names[number]} is within it"


def _walk(items: Any, place: _Place) -> Iterator[tuple[str, int, _Place]]:
    """Every group (``GROUP``) and reference (``GROUPREF``) of a parsed expression, its number, and where it stands."""
    for operator, argument in items:
        what = str(operator)
        if what == "GROUPREF":
            yield what, argument, place
        elif what == "SUBPATTERN" and argument[0] is not None:
            yield "GROUP", argument[0], place
        for below, inner in _below(what, argument, place):
            yield from _walk(below, inner)


def _below(what: str, argument: Any, place: _Place) -> list[tuple[Any, _Place]]:
    """What stands within one item, and where that is."""
    if what == "SUBPATTERN":
        number, below = argument[0], argument[-1]
        return [(below, place if number is None else replace(place, groups=place.groups | {number}))]
    if what in _REPEATS:
        return [(argument[2], replace(place, repeated=place.repeated or argument[1] > 1))]
    if what in _LOOKS:
        return [(argument[1], replace(place, looked=True))]
    if what == "BRANCH":
        return [(below, place) for below in argument[1]]
    if what == "GROUPREF_EXISTS":
        return [(below, place) for below in argument[1:] if below is not None]
    return [(argument, place)] if what == "ATOMIC_GROUP" else []
