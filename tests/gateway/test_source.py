"""Sources that cannot be are refused on construction, with the setting at fault; and how long each remembers."""

from __future__ import annotations

from typing import Any

import pytest

from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.source import Answers, Bucket, Format, InvalidSource, Normaliser, Source

JSON = {"format": Format.JSON}
TEXT = {"format": Format.TEXT, "pattern": "(?P<a>.)(?P<b>.)"}
FORM = {"format": Format.FORM}


@pytest.mark.parametrize(
    ("setting", "fields"),
    [
        ("namespace", {"namespace": "Trade"}),
        ("id", {"client_key": False}),
        ("id", {"id": ((),)}),
        ("id", {"id": ("body",)}),
        ("id", {"id": ("path",)}),
        ("id", {"id": ("id",)}),
        ("id", {"id": ("header:",)}),
        ("id", {"id": ("header:a b",)}),
        ("id", {"id": ("query:",)}),
        ("id", {"id": ("/~2",)}),
        ("id", {"id": (("/a", "/a"),)}),
        ("derive", {"derive": ("/a", "/a")}),
        ("derive", {"derive": ("",)}),
        ("derive", {"derive": ("header:A", "header:a")}),
        ("mode", {"mode": "body"}),
        ("nonce", {"nonce": "path"}),
        ("normalise", {"normalise": {"body": (Normaliser.TRIM,)}}),
        ("exclude", {"exclude": ("header:X-A",)}),
        ("exclude", {"exclude": ("body",)}),
        ("headers", {"headers": ("a b",)}),
        ("headers", {"headers": ("A", "A")}),
        ("secrets", {"secrets": ("path",)}),
        ("pattern", {"pattern": "(?P<a>.)"}),
        ("pattern", {"format": Format.TEXT, "pattern": "(?P<a>."}),
        ("pattern", {"format": Format.TEXT, "pattern": "(a)"}),
        ("derive", {"format": Format.BYTES, "derive": ("/a",)}),
        ("derive", {**FORM, "derive": ("/a/b",)}),
        ("nonce", {**TEXT, "nonce": "/c"}),
        ("secrets", {**TEXT, "secrets": ("/c",)}),
        ("exclude", {**TEXT, "exclude": ("/a/b",)}),
        ("normalise", {**TEXT, "normalise": {"/c": (Normaliser.TRIM,)}}),
        ("derive", {"format": Format.TEXT, "derive": ("/a",)}),
        ("derive", {**JSON, "derive": ("/a",), "secrets": ("/a",)}),
        ("derive", {**JSON, "derive": ("/a/b",), "secrets": ("/a",)}),
        ("derive", {**JSON, "derive": ("/a",), "secrets": ("/a/b",)}),
        ("id", {"id": ("header:Authorization",), "secrets": ("header:authorization",)}),
        ("mode", {**JSON, "mode": "/a", "secrets": ("/a",)}),
        ("nonce", {"nonce": "query:a", "secrets": ("query:a",)}),
        ("headers", {"headers": ("X-A",), "secrets": ("header:X-a",)}),
        ("answers", {"answers": Answers(completed=199)}),
        ("answers", {"answers": Answers(unavailable=600)}),
    ],
)
def test_what_cannot_be(setting: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSource) as caught:
        Source("mine", **fields)
    assert caught.value.setting == setting
    assert str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {**JSON, "derive": ("/a",), "secrets": ("/ab", "/b/a", "query:a", "header:a")},
        {**JSON, "derive": ("body", "path"), "secrets": ("/a",)},
        {**TEXT, "id": ("/a",), "secrets": ("/b",), "nonce": "header:X"},
        {**FORM, "id": (("/a", "/b"), "query:c")},
        {"format": Format.BYTES, "derive": ("body",)},
        {"client_key": False, "id": ("header:X",), "exclude": ("query:a", "/b", "/c/0")},
    ],
)
def test_what_can(fields: dict[str, Any]) -> None:
    assert Source("mine", **fields).plan.rule_id.startswith("source:mine:")


@pytest.mark.parametrize(
    ("source", "memories"),
    [
        (Source("a"), [("its namespace's ttl_ms", 7)]),
        (Source("a", ttl_ms=5), [("ttl_ms", 5)]),
        (Source("a", derive=("path",), window_ms=3), [("its namespace's ttl_ms", 7), ("window_ms", 3)]),
        (Source("a", derive=("path",), window_ms=3, client_key=False), [("window_ms", 3)]),
        (Source("a", derive=("path",), bucket=Bucket.TTL, client_key=False), [("its namespace's ttl_ms", 7)]),
    ],
)
def test_how_long_each_way_to_a_key_remembers(source: Source, memories: list[tuple[str, int]]) -> None:
    assert list(source.memories(7)) == memories


def test_what_nobody_can_promise() -> None:
    assert len(list(SHIPPED["http"].doubts)) == 1
    assert list(SHIPPED["stripe"].doubts) == []
    assert list(SHIPPED["hoox"].doubts) == []
    assert len(list(SHIPPED["hoox-minute"].doubts)) == 1
