"""Sources that cannot be are refused on construction, with the setting at fault; and how long each remembers."""

from __future__ import annotations

from typing import Any

import pytest

from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.source import Answers, Bucket, Format, InvalidSource, Normaliser, Source, Verify
from idemactor.gateway.verify import Scheme

JSON = {"format": Format.JSON}
TEXT = {"format": Format.TEXT, "pattern": "(?P<a>.)(?P<b>.)"}
FORM = {"format": Format.FORM}
SIGNED = Verify(Scheme.GITHUB, ("S",), ("secret",))


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
        # A body may be an array of operations: what leads into each leads into the first, too.
        ("id", {**JSON, "id": ("/0/apiKey",), "secrets": ("/apiKey",)}),
        ("id", {"id": (("header:X", "/0/apiKey"),), "secrets": ("/apiKey",)}),
        ("derive", {**JSON, "derive": ("/a",), "secrets": ("/0/a",)}),
        ("derive", {**JSON, "derive": ("/0/a",), "secrets": ("/a",)}),
        ("derive", {**JSON, "derive": ("/0/a/b",), "secrets": ("/a",)}),
        ("derive", {**JSON, "derive": ("/0",), "secrets": ("/apiKey",)}),
        ("derive", {**JSON, "derive": ("/apiKey",), "secrets": ("/0",), "client_key": False}),
        ("mode", {**JSON, "mode": "/a", "secrets": ("/2/a/b",)}),
        ("nonce", {**JSON, "nonce": "/7/a", "secrets": ("/a",)}),
        ("secrets", {"secrets": ("header:idempotency-key",)}),
        ("secrets", {"secrets": ("header:Idempotency-Key",), "client_key": True, "verify": SIGNED}),
        ("secrets", {**JSON, "secrets": ("/idempotencyKey",)}),
        ("secrets", {**JSON, "secrets": ("/0/idempotencyKey",)}),
        ("id", {"id": ("header:X-A", "/a", "header:x-a")}),
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
        {**JSON, "derive": ("/0/a",), "secrets": ("/1/a", "/0/b")},
        {**JSON, "id": ("/i",), "secrets": ("header:Idempotency-Key", "/idempotencyKey"), "client_key": False},
        {**JSON, "id": ("/i",), "secrets": ("header:Idempotency-Key",), "verify": SIGNED},
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
        (Source("a"), []),
        (Source("a", ttl_ms=5), [("ttl_ms", 5)]),
        (Source("a", derive=("path",), window_ms=3), [("window_ms", 3)]),
        (Source("a", derive=("path",), window_ms=3, ttl_ms=5), [("ttl_ms", 5), ("window_ms", 3)]),
        (Source("a", derive=("path",), window_ms=3, ttl_ms=5, client_key=False), [("window_ms", 3)]),
        (Source("a", derive=("path",), window_ms=3, client_key=False), [("window_ms", 3)]),
        (Source("a", derive=("path",), bucket=Bucket.TTL, ttl_ms=5, client_key=False), [("ttl_ms", 5)]),
    ],
)
def test_how_long_each_way_to_a_key_remembers(source: Source, memories: list[tuple[str, int]]) -> None:
    assert list(source.memories) == memories


def test_what_nobody_can_promise() -> None:
    assert len(list(SHIPPED["http"].doubts)) == 1
    assert list(SHIPPED["stripe"].doubts) == []
    assert list(SHIPPED["hoox"].doubts) == []
    assert len(list(SHIPPED["hoox-minute"].doubts)) == 1


@pytest.mark.parametrize(
    ("scheme", "fields", "unsigned"),
    [
        (
            Scheme.GITHUB,
            {"id": ("header:X-Delivery", "/id"), "derive": ("body", "query:a")},
            ["header:X-Delivery", "query:a"],
        ),
        (Scheme.STANDARD_WEBHOOKS, {"id": ("header:Webhook-Id",), "nonce": "header:X-N"}, ["header:X-N"]),
        (Scheme.STANDARD_WEBHOOKS, {"id": ("header:svix-id",), "mode": "header:X-M"}, ["header:svix-id", "header:X-M"]),
        (Scheme.SVIX, {"id": ("header:svix-id", "header:webhook-id"), "derive": ("path",)}, ["path"]),
        (Scheme.STRIPE, {"id": ("/id",), "mode": "/livemode"}, []),
    ],
)
def test_what_a_sender_that_signs_does_not_sign(scheme: Scheme, fields: dict[str, Any], unsigned: list[str]) -> None:
    assert list(Source("mine", **fields).unsigned) == []
    verify = Verify(scheme, ("S",), ("c2VjcmV0",))
    assert list(Source("mine", verify=verify, **fields).unsigned) == unsigned
