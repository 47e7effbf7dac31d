"""Signatures: their own library accepts them, and so does the verification of our own doors."""

from __future__ import annotations

import base64
import time

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from idemactor.dispatch.signing import Signer
from idemactor.errors import Unauthorized
from idemactor.gateway.request import RawRequest
from idemactor.gateway.verify import Scheme, Verify, check_signature

OLD, NEW = b"o" * 24, b"n" * 32
BODY = '{"text": "zwölf €"}'.encode()
BINARY = b"\xff\x00\xfe"


def secret(key: bytes) -> str:
    return "whsec_" + base64.b64encode(key).decode()


def signed(body: bytes, *keys: bytes) -> tuple[tuple[tuple[str, str], ...], int]:
    now_ms = time.time_ns() // 1_000_000
    return Signer(keys).headers("0190f8f0-0000-7000-8000-000000000000", body, now_ms), now_ms


@pytest.mark.parametrize("key", [OLD, NEW])
def test_their_library_accepts_it_by_either_key(key: bytes) -> None:
    pairs, _ = signed(BODY, OLD, NEW)
    assert Webhook(secret(key)).verify(BODY, dict(pairs)) == {"text": "zwölf €"}


def test_their_library_refuses_another_body_and_another_key() -> None:
    pairs, _ = signed(BODY, OLD)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret(OLD)).verify(BODY + b" ", dict(pairs))
    with pytest.raises(WebhookVerificationError):
        Webhook(secret(NEW)).verify(BODY, dict(pairs))


@pytest.mark.parametrize("body", [BODY, BINARY, b""])
def test_our_own_doors_accept_it(body: bytes) -> None:
    pairs, now_ms = signed(body, OLD, NEW)
    request = RawRequest("POST", "/", pairs, body)
    verify = Verify(Scheme.STANDARD_WEBHOOKS, ("S",), (secret(NEW),))
    check_signature(verify, request, now_ms=now_ms)
    with pytest.raises(Unauthorized):
        check_signature(verify, RawRequest("POST", "/", pairs, body + b"x"), now_ms=now_ms)


def test_without_a_secret_it_is_named_and_nothing_is_signed() -> None:
    assert [name for name, _ in signed(BODY)[0]] == ["webhook-id", "webhook-timestamp"]
