"""JSON Pointers (RFC 6901): which members of a payload a rule names, and a payload with or without them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from idemactor.errors import IdemactorError

Tree: TypeAlias = dict[str, "Tree"]
"""Members to leave out, by token; an empty tree stands for the whole member."""

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
"""An array index as RFC 6901 section 4 writes it: no leading zero."""

_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


class InvalidPointer(IdemactorError, ValueError):
    """A text that is no JSON Pointer, or one that would leave nothing to compare."""


class Absent:
    """What a pointer finds where there is nothing: not null, which is something."""


ABSENT: Final = Absent()


def parse_pointer(pointer: str) -> tuple[str, ...]:
    """The tokens of a JSON Pointer (RFC 6901 section 4), unescaped; none for the whole document.

    Raises:
        InvalidPointer: It does not begin with ``/``, has a ``~`` without ``0`` or ``1``, or a lone surrogate.
    """
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise InvalidPointer("a JSON Pointer is empty or begins with '/'")
    if _BAD_ESCAPE.search(pointer) is not None:
        raise InvalidPointer("in a JSON Pointer '~' is followed by 0 or 1")
    if any("\ud800" <= character <= "\udfff" for character in pointer):
        raise InvalidPointer("a JSON Pointer holds no lone surrogate")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))


def tree_of(pointers: Iterable[tuple[str, ...]]) -> Tree:
    """The exclusions as one tree; who excludes a member excludes whatever is in it."""
    tree: Tree = {}
    # Shorter pointers first: a member that goes as a whole needs no pointers into it.
    for tokens in sorted(pointers, key=len):
        if not tokens:
            raise InvalidPointer("excluding the whole document leaves nothing to compare")
        node = tree
        for token in tokens[:-1]:
            if token in node and not node[token]:
                break
            node = node.setdefault(token, {})
        else:
            node[tokens[-1]] = {}
    return tree


def prune(value: object, tree: Tree) -> object:
    """``value`` without the members of ``tree``, as if they had never been there. The rest is shared."""
    if isinstance(value, dict):
        return {
            name: prune(member, tree[name]) if name in tree else member
            for name, member in value.items()
            if name not in tree or tree[name]
        }
    if isinstance(value, list):
        numbered = ((str(index), item) for index, item in enumerate(value))
        return [
            prune(item, tree[index]) if index in tree else item
            for index, item in numbered
            if index not in tree or tree[index]
        ]
    return value


def pick(value: object, tokens: tuple[str, ...], tree: Tree) -> object:
    """What the tokens lead to, without the members of ``tree``; ``ABSENT`` where that is nothing.

    Positions are those of the whole document: what is excluded moves nothing.
    """
    left_out: Tree | None = tree or None
    for token in tokens:
        if isinstance(value, dict):
            value = value.get(token, ABSENT)
        elif isinstance(value, list) and _INDEX.fullmatch(token) and int(token) < len(value):
            value = value[int(token)]
        else:
            return ABSENT
        left_out = left_out.get(token) if left_out else None
        if left_out is not None and not left_out:
            return ABSENT
    return prune(value, left_out) if left_out else value
