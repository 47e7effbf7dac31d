"""Expressions that keep a secret apart from everything else, and those that cannot be trusted to."""

from __future__ import annotations

import re

import pytest

from idemactor.gateway.patterns import why_not_apart
from idemactor.gateway.source import Format, InvalidSource, Source


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?P<a>\w+) (?P<s>\w+)",
        r"(?P<a>\w+)(?: (?P<s>\w+))?(?s:.*)",
        r"(?:(?P<s>x+)|(?P<a>y+)){1}",
        r"((?P<s>\w+)) (?P<a>\w+)",
        r"(?P<s>(?:ab|c)+) (?P<a>(?P<b>\w)+)",
        r"(?>(?P<s>x+))(?P<a>y)(?(s)z|w)",
        r"(?P<a>(?P<b>x)*) (?P=b)",
    ],
)
def test_what_is_kept_apart(pattern: str) -> None:
    assert why_not_apart(re.compile(pattern), {"s", "absent"}) is None
    Source("mine", format=Format.TEXT, pattern=pattern, derive=("/a",), secrets=("/s",) if "<s>" in pattern else ())


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?P<a>\w (?P<s>\w+))",
        r"(?P<a>x(?:y|(?P<s>z))?)",
        r"(?P<s>\w (?P<a>\w+))",
        r"(?P<s>x(y(?P<a>z)?))",
        r"(?P<a>x)(?:(?P<s>\w+) )+",
        r"(?P<a>x)(?P<s>y)*",
        r"(?P<a>x)(?:(?P<s>y)){2}",
        r"(?P<a>x)(?:(?P<s>y))*+",
        r"(?P<a>x)(?:(?P<s>y))*?",
        r"(?P<a>x)(?P<s>y)(?P=s)",
        r"(?P<a>x)(?P<s>y)\2",
        r"(?=(?P<a>.*))(?P<s>.*)",
        r"(?=(?P<s>.*))(?P<a>.*)",
        r"(?P<s>.*)(?<=(?P<a>.))",
        r"(?P<a>x)(?>(?:(?P<s>y))*)",
        r"(?P<a>x)?(?(a)(?:(?P<s>y))*|z)",
    ],
)
def test_what_is_not(pattern: str) -> None:
    assert why_not_apart(re.compile(pattern), set()) is None
    with pytest.raises(InvalidSource) as caught:
        Source("mine", format=Format.TEXT, pattern=pattern, secrets=("/s",))
    assert caught.value.setting == "pattern"
