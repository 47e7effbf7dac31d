"""The settings of all sources, merged into one tree whose every leaf still knows where it came from."""

from __future__ import annotations

from dataclasses import dataclass, field

SettingPath = tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Where something stands, for people: ``config.toml:12`` or ``environment IDEMACTOR_SERVER__SHARDS``."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value as one source gave it.

    Attributes:
        value: What the file or the flag says, or the text of an environment variable.
        origin: Where it stands.
        is_text: It is bare text, whose type depends on the setting: an environment variable.
    """

    value: object
    origin: Origin
    is_text: bool = False


@dataclass(slots=True)
class Table:
    """Settings by name; ``origin`` is where the table is first named, ``is_list`` a list of tables by their numbers."""

    origin: Origin
    members: dict[str, Table | Leaf] = field(default_factory=dict)
    is_list: bool = False

    def put(self, path: SettingPath, leaf: Leaf) -> None:
        """Sets one leaf, over whatever an earlier source said there; makes the tables on the way."""
        table = self
        for name in path[:-1]:
            below = table.members.get(name)
            if not isinstance(below, Table):
                below = table.members[name] = Table(leaf.origin)
            table = below
        table.members[path[-1]] = leaf

    def find(self, path: SettingPath) -> Table | Leaf | None:
        """What stands at ``path``, if anything does."""
        found: Table | Leaf | None = self
        for name in path:
            found = found.members.get(name) if isinstance(found, Table) else None
        return found


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong, and where."""

    origin: Origin
    setting: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.origin), self.setting, self.text) if part)
