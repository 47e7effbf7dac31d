"""Reads one table of the merged tree, collecting what is wrong with it instead of stopping at the first."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final, TypeVar

from idemactor.config.kinds import NAME_ALLOWED, Kind, is_name, show
from idemactor.config.tree import Leaf, Problem, Table

T = TypeVar("T")
D = TypeVar("D")

_HIDDEN: Final = "(not shown)"


class Section:
    """One table that is being read.

    The settings that exist are those that were asked for: :meth:`close` reports all others, so that a setting
    cannot be read and yet be unknown, or the reverse.
    """

    def __init__(self, table: Table, setting: str, problems: list[Problem]) -> None:
        self._table = table
        self._setting = setting
        self._problems = problems
        self._known: list[str] = []

    def read(self, name: str, kind: Kind[T], default: D) -> T | D:
        """The value of a setting; ``default`` where it is left out, or wrong and reported."""
        self._known.append(name)
        found = self._table.members.get(name)
        if found is None:
            return default
        if isinstance(found, Table):
            self.report(f"must be {kind.allowed}, not a table", name)
            return default
        try:
            return kind.of(found)
        except ValueError as error:
            self.report(str(error), name)
            return default

    def require(self, name: str, kind: Kind[T], stand_in: T) -> T:
        """As :meth:`read`, for a setting that cannot be left out."""
        if name not in self._table.members:
            self.report(f"is missing; it must be {kind.allowed}", name)
        return self.read(name, kind, stand_in)

    def section(self, name: str) -> Section:
        """The table of that name; an empty one where it is left out, or no table and reported."""
        self._known.append(name)
        found = self._table.members.get(name)
        if isinstance(found, Leaf) or (found is not None and found.is_list):
            self.report("must be a table", name)
            found = None
        table = Table(self._table.origin) if found is None else found
        return Section(table, self._dotted(name), self._problems)

    def named_sections(self) -> Iterator[tuple[str, Section]]:
        """Every member, each a table whose name the user chose; what is none is reported and left out."""
        for name in self._table.members:
            section = self.section(name)
            if not is_name(name):
                shown = _HIDDEN if self._may_hold_secrets else show(name)
                self.report(f"{shown} is no name: it must be {NAME_ALLOWED}", name)
            elif isinstance(self._table.members[name], Table):
                yield name, section

    def listed_sections(self, name: str) -> Iterator[Section]:
        """The tables of a list of tables, in order; what is none is reported and left out."""
        self._known.append(name)
        found = self._table.members.get(name)
        if found is None:
            return
        if isinstance(found, Leaf) or not found.is_list or not all(number.isdecimal() for number in found.members):
            self.report(f"must be a list of tables, each under [[{self._dotted(name)}]]", name)
            return
        numbered = Section(found, self._dotted(name), self._problems)
        for number in sorted(found.members, key=int):
            yield numbered.section(number)

    def know(self, name: str) -> None:
        """The setting exists, though it is not read here."""
        self._known.append(name)

    def names(self) -> list[str]:
        """Every member, for a table whose names the user chose and that are no names of ours."""
        return list(self._table.members)

    def has(self, name: str) -> bool:
        """Was the setting given, rightly or wrongly?"""
        return name in self._table.members

    def sections(self, *names: str) -> Iterator[tuple[str, Section]]:
        """Those of the tables ``names`` that were given; one that is no table is reported and left out."""
        for name in names:
            section = self.section(name)
            if self.has_table(name):
                yield name, section

    def has_table(self, name: str) -> bool:
        """Was it given, and as a table?"""
        return isinstance(self._table.members.get(name), Table)

    def report(self, text: str, name: str | None = None) -> None:
        """Notes a problem of this table, or of one of its settings; it is placed where that stands."""
        at = self._table.members.get(name, self._table) if name is not None else self._table
        setting = self._setting if name is None else self._dotted(name)
        self._problems.append(Problem(at.origin, setting, text))

    def is_reported(self, name: str) -> bool:
        """Whether a setting is wrong, and reported already."""
        return any(problem.setting == self._dotted(name) for problem in self._problems)

    def close(self) -> None:
        """Reports every setting that does not exist, with the one that was probably meant."""
        for name in self._table.members:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, n=1)
                known = ", ".join(sorted(self._known))
                hint = f"did you mean {near[0]}?" if near else f"there are {known}"
                self.report(f"no such setting; {hint}", name)

    @property
    def _may_hold_secrets(self) -> bool:
        """A token may stand where its name belongs, and an error line goes to the log."""
        return self._setting.partition(".")[0] == "auth"

    def _dotted(self, name: str) -> str:
        part = name if is_name(name) or name.isdecimal() else _HIDDEN if self._may_hold_secrets else show(name)
        return f"{self._setting}.{part}" if self._setting else part
