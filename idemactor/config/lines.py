"""On which line of a TOML document each setting stands.

The standard library's reader gives values without positions. This walks a document that it has already
accepted, so nothing is checked here: only keys, tables and the extent of values are told apart (TOML 1.0.0).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from itertools import count

from idemactor.config.tree import SettingPath

_BLANK = " \t\r\n"
_QUOTES = "\"'"


def locate(document: str) -> dict[SettingPath, int]:
    """The line, from 1, on which each table and each setting of a valid ``document`` is first named."""
    return _Walker(document).walk()


class _Walker:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[SettingPath, int] = {}
        self._arrays: dict[SettingPath, int] = {}

    def walk(self) -> dict[SettingPath, int]:
        table: SettingPath = ()
        self._skip_blank()
        while self._peek():
            if self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip_blank()
        return self._lines

    def _header(self) -> SettingPath:
        """Reads a table's header. A table of an array has its number, from 0, as the last part of its path."""
        is_array = self._text.startswith("[[", self._at)
        line = self._text.count("\n", 0, self._at) + 1
        self._at += 2 if is_array else 1
        written = self._key(())
        self._at += 2 if is_array else 1
        table: SettingPath = ()
        for depth, part in enumerate(written, 1):
            table = (*table, part)
            if is_array and depth == len(written):
                self._arrays[table] = self._arrays.get(table, -1) + 1
            if table in self._arrays:
                table = (*table, str(self._arrays[table]))
            self._lines.setdefault(table, line)
        return table

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_blank(self) -> None:
        """Passes white space, line ends and comments."""
        while char := self._peek():
            if char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif char in _BLANK:
                self._at += 1
            else:
                return

    def _key(self, table: SettingPath) -> SettingPath:
        """Reads a dotted key and notes its line for each of its prefixes."""
        path = table
        line = self._text.count("\n", 0, self._at) + 1
        while True:
            self._skip_blank()
            start = self._at
            if self._peek() in _QUOTES:
                self._string()
            else:
                while self._peek() not in (*" \t.=]",):
                    self._at += 1
            (part,) = tomllib.loads(f"{self._text[start : self._at]} = 0")
            path = (*path, part)
            self._lines.setdefault(path, line)
            self._skip_blank()
            if self._peek() != ".":
                return path
            self._at += 1

    def _pair(self, table: SettingPath) -> None:
        path = self._key(table)
        self._at += 1  # the equals sign
        self._skip_blank()
        self._value(path)

    def _value(self, path: SettingPath) -> None:
        char = self._peek()
        if char == "{":
            self._members("}", lambda: self._pair(path))
        elif char == "[":
            numbers = count()
            self._members("]", lambda: self._value((*path, str(next(numbers)))))
        elif char in _QUOTES:
            self._string()
        else:
            while (char := self._peek()) and char not in ",]}#\n":
                self._at += 1

    def _members(self, close: str, member: Callable[[], None]) -> None:
        self._at += 1
        self._skip_blank()
        while self._peek() != close:
            member()
            self._skip_blank()
            if self._peek() == ",":
                self._at += 1
                self._skip_blank()
        self._at += 1

    def _string(self) -> None:
        quote = self._peek()
        long = self._text.startswith(quote * 3, self._at)
        close = quote * 3 if long else quote
        self._at += len(close)
        while not self._text.startswith(close, self._at):
            self._at += 2 if quote == '"' and self._peek() == "\\" else 1
        self._at += len(close)
        # Up to two quotes may stand right before the three that close.
        while long and self._peek() == quote:
            self._at += 1
