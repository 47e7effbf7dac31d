"""The alert rules as they are shipped, and somebody who watches a server by them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tests.observability.promql import History, Labels, Vector, evaluate, seconds

RULES: Final = Path(__file__).resolve().parents[2] / "examples" / "prometheus" / "idemactor.rules.yml"
ALERTS: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}

BY_COUNTERS: Final = frozenset(
    alert for alert, rule in ALERTS.items() if re.search(r"\b(increase|rate)\(", rule["expr"])
)
"""The alerts that something happened, rather than that something is so."""


class Watcher:
    """Scrapes one server, and evaluates all rules each time, as Prometheus does."""

    def __init__(self) -> None:
        self._history = History({"job": "idemactor", "instance": "here:8787"})
        self._found: list[tuple[float, dict[str, Vector]]] = []
        self.fired: dict[str, float] = {}
        """When each alert first fired that ever did."""

    def scrape(self, at_s: float, exposition: str | None) -> None:
        """What ``/metrics`` said at that time; None: it did not answer."""
        self._history.add(at_s, exposition)
        found = {name: evaluate(rule["expr"], self._history) for name, rule in ALERTS.items()}
        self._found.append((at_s, found))
        for alert in ALERTS:
            if self.firing(alert):
                self.fired.setdefault(alert, at_s)

    @property
    def end_s(self) -> float:
        """When it last looked."""
        return self._found[-1][0]

    @property
    def names(self) -> set[str]:
        """Of everything that the last scrape had."""
        return {name for name, _ in self._history.scrapes[-1][1]}

    def firing(self, alert: str) -> set[Labels]:
        """What it fires for: what has held at every evaluation for as long as the rule says."""
        end, begin = self._found[-1][0], self._found[0][0]
        for_s = seconds(ALERTS[alert].get("for", "0s"))
        if end - begin < for_s:
            return set()
        lately = [found[alert].keys() for at, found in self._found if at >= end - for_s]
        return set.intersection(*map(set, lately))

    def last(self, alert: str) -> Vector:
        """What its expression came to, the last time."""
        return self._found[-1][1][alert]
