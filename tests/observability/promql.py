"""As much of PromQL as the alert rules use, over what was scraped: for tests alone.

Written from the language's documentation; what it does not know it refuses. ``rate`` and ``increase`` do not
extrapolate to the ends of their range, as Prometheus does: here they are a little smaller.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Value: TypeAlias = "Vector | float"

_TOKEN: Final = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?(?![\w:]))|(?P<range>\[\w+\])|(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[a-zA-Z_:][\w:]*)'
    r"|(?P<sign>==|!=|=~|!~|>=|<=|[-+*/(){},=<>]))"
)
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_COUNT: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else float("nan"),
}


def seconds(text: str) -> int:
    """A duration such as ``5m``."""
    return int(text[:-1]) * _UNITS[text[-1]]


@dataclass(slots=True)
class History:
    """What was scraped of one target, in order.

    Attributes:
        target: Labels that every series gets.
        scrapes: By time, seconds: the values by name and labels.
    """

    target: Mapping[str, str]
    scrapes: list[tuple[float, dict[tuple[str, Labels], float]]] = field(default_factory=list)

    def add(self, at_s: float, exposition: str | None) -> None:
        """A scrape; None: it failed."""
        found: dict[tuple[str, Labels], float] = {}
        target = frozenset(self.target.items())
        for family in text_string_to_metric_families(exposition or ""):
            for sample in family.samples:
                found[sample.name, frozenset(sample.labels.items()) | target] = sample.value
        found["up", target] = float(exposition is not None)
        self.scrapes.append((at_s, found))


@dataclass(slots=True)
class _Reader:
    tokens: list[str]
    history: History
    at: int = 0

    # ------------------------------------------------------------------------------------------------------ grammar

    def expression(self) -> Value:
        left = self.both()
        while self.peek() == "or":
            self.take()
            right = self.both()
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            left = right | left
        return left

    def both(self) -> Value:
        left = self.comparison()
        while self.peek() in ("and", "unless"):
            word, on, right = self.take(), self.on(), self.comparison()
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            there = {_only(labels, on) for labels in right}
            left = {labels: value for labels, value in left.items() if (_only(labels, on) in there) == (word == "and")}
        return left

    def on(self) -> frozenset[str] | None:
        """The labels that both sides are compared by; None: all."""
        if self.peek() != "on":
            return None
        self.take()
        self.take("(")
        names = [self.take()]
        while self.peek() == ",":
            self.take()
            names.append(self.take())
        self.take(")")
        return frozenset(names)

    def comparison(self) -> Value:
        left = self.sum()
        if self.peek() in _COMPARE:
            compare, right = _COMPARE[self.take()], self.sum()
            assert isinstance(left, dict)
            # A comparison with a number keeps the value of those that fulfil it.
            assert isinstance(right, float)
            left = {labels: value for labels, value in left.items() if compare(value, right)}
        return left

    def sum(self) -> Value:
        left = self.product()
        while self.peek() in ("+", "-"):
            left = _combine(_COUNT[self.take()], left, self.product())
        return left

    def product(self) -> Value:
        left = self.primary()
        while self.peek() in ("*", "/"):
            left = _combine(_COUNT[self.take()], left, self.primary())
        return left

    def primary(self) -> Value:
        token = self.take()
        if token == "(":
            inner = self.expression()
            self.take(")")
            return inner
        if token[0].isdigit():
            return float(token)
        if token in ("rate", "increase"):
            self.take("(")
            name, wanted = self.take(), self.matchers()
            over_s = seconds(self.take()[1:-1])
            self.take(")")
            return self.grown(name, wanted, over_s, per_second=token == "rate")
        assert re.fullmatch(r"[a-zA-Z_:][\w:]*", token), f"not known here: {token}"
        assert self.peek() != "(", f"no such function here: {token}"
        return self.now(token, self.matchers())

    def matchers(self) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        if self.peek() != "{":
            return found
        self.take()
        while self.peek() != "}":
            found.append((self.take(), self.take(), self.take()[1:-1]))
            if self.peek() == ",":
                self.take()
        self.take("}")
        return found

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        assert token, "the expression ends too early"
        assert expected in (None, token), f"{expected} is missing before {token}"
        self.at += 1
        return token

    # ------------------------------------------------------------------------------------------------------- values

    def now(self, name: str, wanted: list[tuple[str, str, str]]) -> Vector:
        """The series as they were last scraped: one that was not there then is gone."""
        _, scraped = self.history.scrapes[-1]
        return {labels: value for (n, labels), value in scraped.items() if n == name and _match(labels, wanted)}

    def grown(self, name: str, wanted: list[tuple[str, str, str]], over_s: int, *, per_second: bool) -> Vector:
        """How much counters grew; one that became smaller began anew."""
        end = self.history.scrapes[-1][0]
        samples: dict[Labels, list[tuple[float, float]]] = {}
        for at, scraped in self.history.scrapes:
            for (n, labels), value in scraped.items():
                if at >= end - over_s and n == name and _match(labels, wanted):
                    samples.setdefault(labels, []).append((at, value))
        vector: Vector = {}
        for labels, found in samples.items():
            if len(found) < 2:
                continue
            pairs = itertools.pairwise(found)
            grew = sum(value - before if value >= before else value for (_, before), (_, value) in pairs)
            vector[labels] = grew / (found[-1][0] - found[0][0]) * (1 if per_second else over_s)
        return vector


def _only(labels: Labels, names: frozenset[str] | None) -> Labels:
    """A label that is missing is as good as an empty one, to Prometheus."""
    return labels if names is None else frozenset((name, value) for name, value in labels if name in names and value)


def _match(labels: Labels, wanted: list[tuple[str, str, str]]) -> bool:
    values = dict(labels)
    for name, sign, text in wanted:
        value = values.get(name, "")
        held = {
            "=": value == text,
            "!=": value != text,
            "=~": re.fullmatch(text, value) is not None,
            "!~": re.fullmatch(text, value) is None,
        }[sign]
        if not held:
            return False
    return True


def _combine(count: Callable[[float, float], float], left: Value, right: Value) -> Value:
    if isinstance(left, float) and isinstance(right, float):
        return count(left, right)
    if isinstance(right, float):
        assert isinstance(left, dict)
        return {labels: count(value, right) for labels, value in left.items()}
    if isinstance(left, float):
        return {labels: count(left, value) for labels, value in right.items()}
    return {labels: count(value, right[labels]) for labels, value in left.items() if labels in right}


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        assert found is not None, f"not PromQL as it is known here: {text[at:]}"
        yield found[found.lastgroup or 0]
        at = found.end()


def evaluate(expression: str, history: History) -> Vector:
    """What an alert's expression comes to at the time of the last scrape: empty where it does not hold."""
    reader = _Reader(list(_tokens(expression)), history)
    value = reader.expression()
    assert not reader.peek(), f"not understood: {reader.tokens[reader.at :]}"
    assert isinstance(value, dict), "an alert is a vector"
    return value
