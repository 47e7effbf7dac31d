"""The line of every setting: for documents written by hand, and for every document that can be generated."""

from __future__ import annotations

import json
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from idemactor.config.lines import locate


def test_the_first_line_of_every_table_and_setting() -> None:
    document = '''# a comment = 1
top.dotted = 1
[ a . "b.c" ] # [not.a.table]
one = """
[inside] = 2
\\"""" # still one line
two = ["x", # ]
  "y = 3",
]
three = { four = 4, 'five' = { six = "}" } }
[[list]]
seven = \'\'\'it's''\'\'\'
[[list]]
eight = 1979-05-27 07:32:00Z'''
    assert locate(document) == {
        ("top",): 2,
        ("top", "dotted"): 2,
        ("a",): 3,
        ("a", "b.c"): 3,
        ("a", "b.c", "one"): 4,
        ("a", "b.c", "two"): 7,
        ("a", "b.c", "three"): 10,
        ("a", "b.c", "three", "four"): 10,
        ("a", "b.c", "three", "five"): 10,
        ("a", "b.c", "three", "five", "six"): 10,
        ("list",): 11,
        ("list", "0"): 11,
        ("list", "0", "seven"): 12,
        ("list", "1"): 13,
        ("list", "1", "eight"): 14,
    }


KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=4)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t\"'#[]{}=,\\"), max_size=9)
SCALARS = st.one_of(st.booleans(), st.integers(-99, 99), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), max_size=3)


def write_text(text: str) -> str:
    if "'" not in text and "\n" not in text:
        return f"'{text}'"
    if "\n" in text and "'''" not in text and not text.endswith("'"):
        return f"'''\n{text}'''"
    return json.dumps(text, ensure_ascii=False)


def write(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return write_text(value)
        case list():
            return "[ # ]\n" + "".join(f"{write(item)},\n" for item in value) + "]"
        case dict():
            return (
                "{"
                + ", ".join(f"{json.dumps(key, ensure_ascii=False)} = {write(item)}" for key, item in value.items())
                + "}"
            )
        case _:
            return str(value)


@given(TABLES)
def test_every_setting_of_any_document(tables: dict[str, dict[str, object]]) -> None:
    document = ""
    expected: dict[tuple[str, ...], int] = {}
    for table, settings in tables.items():
        expected[(table,)] = document.count("\n") + 1
        document += f"[{json.dumps(table, ensure_ascii=False)}]\n\n"
        for name, value in settings.items():
            expected[(table, name)] = document.count("\n") + 1
            document += f"{json.dumps(name, ensure_ascii=False)} = {write(value)}  # [x]\n"
    assert tomllib.loads(document) == tables
    found = locate(document)
    assert {path: line for path, line in found.items() if path in expected} == expected
