"""Fingerprints: what means the same has the same digest, however it is written, and nothing else has."""

from __future__ import annotations

import json
from decimal import Decimal
from random import Random
from typing import Any, Final

from idemactor.core.fingerprint import FingerprintRule, InvalidPayload, Number, canonical, fingerprint_of
from idemactor.wire.strict_json import InvalidJSON, parse
from tests.fuzz.harness import fuzz

RULES: Final = (FingerprintRule(), FingerprintRule(include=("/a",)), FingerprintRule(exclude=("/a/b", "/c")))
SAMPLES: Final = [
    b'{"a":{"b":1,"c":[1.50,-0,1e3]},"c":"\\u00fc","d":null}',
    b'[true,false,null,"",{},[],0.1,100000000000000000000,"\xf0\x9f\xa6\x80"]',
    b'{"b":2,"a":1,"ab":{"":0}}',
    b'"text"',
    b"-12.5e-7",
]
WORDS: Final = (
    *(
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"null",
        b"true",
        b"1.0",
        b"1e1",
        b"10",
        b"-0",
        b"0.0",
        b"1E+2",
        b"\\u0041",
    ),
    *(
        b'"a":',
        b'"b":',
        b'"c":',
        b"\\ud83e\\udd80",
        b"\xc3\xbc",
        b"\\n",
        b"9" * 30,
        b"1e999999",
        b"1e-999999",
        b"[" * 70,
    ),
)


def meaning(value: Any) -> Any:
    """What a value means, by other means than those under test: hashable, and equal where it means the same."""
    match value:
        case bool() | None:
            return (type(value).__name__, value)
        case int() | Number():
            return ("number", exact(value.text if isinstance(value, Number) else str(value)))
        case str():
            return ("text", value)
        case list():
            return ("list", tuple(map(meaning, value)))
        case dict():
            return ("object", frozenset((name, meaning(member)) for name, member in value.items()))
        case _:
            raise AssertionError(type(value))


def exact(literal: str) -> tuple[int, str, int]:
    """Sign, digits without zeros at their end, and exponent; zero is zero."""
    sign, digits, exponent = Decimal(literal).as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    assert isinstance(exponent, int)
    return (sign, kept, exponent + len(text) - len(kept)) if kept else (0, "", 0)


def rewritten(rng: Random, value: Any) -> str:
    """The same, written otherwise: other white space, escapes, order of members, and spelling of numbers."""
    space = rng.choice(("", " ", "\n\t", "\r\n"))
    match value:
        case bool() | None:
            return f"{space}{json.dumps(value)}{space}"
        case int() | Number():
            return space + respelt(rng, value.text if isinstance(value, Number) else str(value))
        case str():
            return space + quoted(rng, value)
        case list():
            return "[" + ",".join(rewritten(rng, item) for item in value) + space + "]"
        case dict():
            members = list(value.items())
            rng.shuffle(members)
            return "{" + ",".join(f"{quoted(rng, name)}{space}:{rewritten(rng, item)}" for name, item in members) + "}"
        case _:
            raise AssertionError(type(value))


def quoted(rng: Random, text: str) -> str:
    return json.dumps(text, ensure_ascii=rng.random() < 0.5)


def respelt(rng: Random, literal: str) -> str:
    if "e" in literal.lower():
        mantissa, _, exponent = literal.lower().partition("e")
        return f"{mantissa}{rng.choice('eE')}{exponent}"
    if "." in literal:
        return literal + "0" * rng.randrange(3)
    return literal + rng.choice(("", ".0", "e0", "E+0", "e-0", ".00"))


def test_fingerprints() -> None:
    rng = Random(11)
    known: dict[bytes, Any] = {}
    by_meaning: dict[Any, bytes] = {}

    def target(data: bytes) -> str:
        try:
            value = parse(data)
        except InvalidJSON as error:
            return str(error).partition(" at ")[0][:30]
        digests = []
        for text in (data, rewritten(rng, value).encode()):
            try:
                digests.append([fingerprint_of(parse(text), rule) for rule in RULES] + [canonical(parse(text))])
            except InvalidPayload as error:
                digests.append([str(error)])  # type: ignore[list-item]
        assert digests[0] == digests[1], "the same, written otherwise, is another"
        if len(digests[0]) == 1:
            return str(digests[0][0])[:30]
        digest, means = digests[0][-1], meaning(value)
        assert isinstance(digest, bytes)
        assert known.setdefault(digest, means) == means, "two meanings with one digest"
        assert by_meaning.setdefault(means, digest) == digest, "one meaning with two digests"
        if len(known) > 20_000:
            known.clear()
            by_meaning.clear()
        return f"{type(value).__name__} {min(len(data) // 20, 5)}"

    assert len(fuzz("fingerprints", target, SAMPLES, WORDS)) > 10
