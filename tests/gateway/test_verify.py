"""Signatures of senders: published examples pass, and whatever is missing, late, cut or forged does not."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.errors import Code, Unauthorized
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.request import RawRequest
from idemactor.gateway.resolve import NoKey, resolve
from idemactor.gateway.verify import SIGNATURES_MAX, InvalidSecret, Scheme, Verify, check_signature
from tests.gateway.payloads import payloads

CASES = {case.id: case for case in payloads()}


@dataclass(frozen=True, slots=True)
class Example:
    """A request that is signed right.

    Attributes:
        signed: The header fields that are signed, beside the body.
        at_s: When it was signed, seconds since the epoch; None: that is not signed.
    """

    scheme: Scheme
    secret: str
    request: RawRequest
    signature: str
    signed: tuple[str, ...] = ()
    at_s: int | None = None


def posted(body: bytes, **headers: str) -> RawRequest:
    return RawRequest("POST", "/", tuple((name.replace("_", "-"), value) for name, value in headers.items()), body)


PUBLISHED = [
    # GitHub, "Validating webhook deliveries", "Testing the webhook payload validation".
    Example(
        Scheme.GITHUB,
        "It's a Secret to Everybody",
        posted(
            b"Hello, World!",
            X_Hub_Signature_256="sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        ),
        "X-Hub-Signature-256",
    ),
    # Slack, "Verifying requests from Slack".
    Example(
        Scheme.SLACK,
        "8f742231b10e8888abcd99yyyzzz85a5",
        posted(
            b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
            b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
            b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
            b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
            X_Slack_Request_Timestamp="1531420618",
            X_Slack_Signature="v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        ),
        "X-Slack-Signature",
        ("X-Slack-Request-Timestamp",),
        1531420618,
    ),
    # Standard Webhooks and Svix, the example of their manual verification.
    *(
        Example(
            scheme,
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            RawRequest(
                "POST",
                "/",
                (
                    (f"{prefix}-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
                    (f"{prefix}-timestamp", "1614265330"),
                    (f"{prefix}-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
                ),
                b'{"test": 2432232314}',
            ),
            f"{prefix}-signature",
            (f"{prefix}-id", f"{prefix}-timestamp"),
            1614265330,
        )
        for scheme, prefix in (
            (Scheme.STANDARD_WEBHOOKS, "webhook"),
            (Scheme.SVIX, "svix"),
            (Scheme.SVIX, "webhook"),
        )
    ),
]
OF_PAYLOADS = [
    Example(
        Scheme.STRIPE, "whsec_made_up_stripe", CASES["h03-stripe-event"].first, "Stripe-Signature", at_s=1772462101
    ),
    Example(Scheme.GITHUB, "made-up-github-secret", CASES["h04-github-push"].first, "X-Hub-Signature-256"),
    Example(Scheme.SHOPIFY, "made-up-shopify-secret", CASES["h05-shopify-order"].first, "X-Shopify-Hmac-Sha256"),
    Example(
        Scheme.STANDARD_WEBHOOKS,
        "whsec_bWFkZS11cC1zdGFuZGFyZC13ZWJob29rcy1rZXktMjQ=",
        CASES["h06-standard-webhooks"].first,
        "webhook-signature",
        ("webhook-id", "webhook-timestamp"),
        1772452800,
    ),
]
EXAMPLES = [*PUBLISHED, *OF_PAYLOADS]
each = pytest.mark.parametrize("example", EXAMPLES, ids=[f"{one.scheme}-{at}" for at, one in enumerate(EXAMPLES)])


def check(
    example: Example, request: RawRequest | None = None, *, late_s: float = 0, secrets: tuple[str, ...] = ()
) -> None:
    verify = Verify(example.scheme, ("S",), secrets or (example.secret,))
    now_ms = round(((example.at_s or 1_700_000_000) + late_s) * 1_000)
    check_signature(verify, request or example.request, now_ms=now_ms)


def refused(
    example: Example, request: RawRequest | None = None, *, late_s: float = 0, secrets: tuple[str, ...] = ()
) -> None:
    with pytest.raises(Unauthorized) as caught:
        check(example, request, late_s=late_s, secrets=secrets)
    assert caught.value.code is Code.BAD_SIGNATURE
    assert caught.value.field is not None
    assert caught.value.field.startswith("header:")
    # Over RPC there is nothing but the detail.
    assert caught.value.field.removeprefix("header:") in caught.value.detail
    shown = f"{caught.value.detail} {caught.value!r}"
    assert not any(secret in shown for secret in (example.secret, *secrets))


def with_header(request: RawRequest, name: str, value: str | None) -> RawRequest:
    """The field set to ``value``; None: without it."""
    others = tuple(pair for pair in request.headers if pair[0].lower() != name.lower())
    return replace(request, headers=others if value is None else (*others, (name, value)))


@each
def test_what_is_signed_right_passes(example: Example) -> None:
    check(example)
    # Case of names, and fields that nobody signs, do not matter.
    names = tuple((name.upper(), f" {value}\t") for name, value in example.request.headers)
    check(example, replace(example.request, headers=(*names, ("X-Other", "1"))))


@each
def test_another_body_or_secret_does_not(example: Example) -> None:
    refused(example, replace(example.request, body=example.request.body + b" "))
    refused(example, replace(example.request, body=b""))
    refused(example, secrets=("whsec_b3RoZXI=",))


@each
def test_a_secret_that_is_rotated(example: Example) -> None:
    for secrets in ((example.secret, "whsec_b3RoZXI="), ("whsec_b3RoZXI=", example.secret)):
        check(example, secrets=secrets)


@each
def test_every_signed_field_counts_and_is_there_once(example: Example) -> None:
    for name in (*example.signed, example.signature):
        [value] = example.request.header(name)
        refused(example, with_header(example.request, name, None))
        refused(example, with_header(example.request, name, ""))
        refused(example, replace(example.request, headers=(*example.request.headers, (name, value))))
        refused(example, with_header(example.request, name, value[:-1]))
        refused(example, with_header(example.request, name, value.replace("1", "2", 1) + ("" if "1" in value else "x")))


@each
def test_the_time_of_a_signature(example: Example) -> None:
    if example.at_s is None:
        check(example, late_s=1e9)
        return
    for late_s in (-300, 0, 299.999, 300):
        check(example, late_s=late_s)
    for late_s in (-300.001, 300.001, 3_600, 1e9, -1e9):
        refused(example, late_s=late_s)


@each
@pytest.mark.parametrize(
    "value", ["x", "v1,", "sha256=", "v0=", "t=1", "v1=" + "0" * 64, "sha256=" + "0" * 64, "é", "A" * 70_000]
)
def test_signatures_of_no_form(example: Example, value: str) -> None:
    refused(example, with_header(example.request, example.signature, value))


@pytest.mark.parametrize("value", ["", "1614265330.0", "-1614265330", "1614265330 ", "abc", "9" * 40])
def test_times_of_no_form(value: str) -> None:
    slack, standard = PUBLISHED[1], PUBLISHED[2]
    if value.strip() != "1614265330":
        refused(standard, with_header(standard.request, "webhook-timestamp", value))
        refused(slack, with_header(slack.request, "X-Slack-Request-Timestamp", value))
    stripe = OF_PAYLOADS[0]
    signature = stripe.request.header("Stripe-Signature")[0].partition(",")[2]
    refused(stripe, with_header(stripe.request, "Stripe-Signature", f"t={value},{signature}"))
    refused(stripe, with_header(stripe.request, "Stripe-Signature", f"t=1772462101,t={value},{signature}"))
    refused(stripe, with_header(stripe.request, "Stripe-Signature", signature))


def test_one_of_several_signatures_is_enough_within_a_limit() -> None:
    standard = PUBLISHED[2]
    [right] = standard.request.header("webhook-signature")
    wrong = "v1,MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA="
    for signatures in ([wrong, right], [right, wrong], ["v1a,AAAA", right], [*[wrong] * (SIGNATURES_MAX - 1), right]):
        check(standard, with_header(standard.request, "webhook-signature", " ".join(signatures)))
    too_many = " ".join([*[wrong] * SIGNATURES_MAX, right])
    refused(standard, with_header(standard.request, "webhook-signature", too_many))
    stripe = OF_PAYLOADS[0]
    [signed] = stripe.request.header("Stripe-Signature")
    check(stripe, with_header(stripe.request, "Stripe-Signature", signed.replace(",v1", f",v1={'0' * 64},v0=aa,v1")))


@pytest.mark.parametrize(
    ("scheme", "secret"),
    [
        *((scheme, secret) for scheme in Scheme for secret in ("", "  ")),
        (Scheme.STANDARD_WEBHOOKS, "whsec_"),
        (Scheme.STANDARD_WEBHOOKS, "no base64"),
        (Scheme.SVIX, "whsec_%%%"),
    ],
)
def test_secrets_that_no_scheme_takes(scheme: Scheme, secret: str) -> None:
    with pytest.raises(InvalidSecret) as caught:
        Verify(scheme, ("S",), ("whsec_b3RoZXI=", secret))
    assert not secret.strip() or secret not in str(caught.value)
    with pytest.raises(InvalidSecret):
        Verify(scheme, (), ())


def test_a_secret_shows_nowhere() -> None:
    source = replace(SHIPPED["github"], verify=Verify(Scheme.GITHUB, ("HOOK_SECRET",), ("s3cret",)))
    assert "s3cret" not in repr(source)
    assert "HOOK_SECRET" in repr(source)


@pytest.mark.parametrize("example", OF_PAYLOADS, ids=lambda example: example.scheme)
def test_a_source_that_verifies_asks_for_the_signature_first(example: Example) -> None:
    source = replace(SHIPPED[example.scheme.value], verify=Verify(example.scheme, ("S",), (example.secret,)))
    now_ms = (example.at_s or 0) * 1_000
    assert resolve(source, example.request, now_ms=now_ms) == resolve(
        SHIPPED[source.name], example.request, now_ms=now_ms
    )
    for request in (
        replace(example.request, body=b"{"),
        replace(example.request, headers=()),
        replace(example.request, headers=(*example.request.headers, ("Idempotency-Key", "")), body=b""),
    ):
        with pytest.raises(Unauthorized):
            resolve(source, request, now_ms=now_ms)


SIGN: dict[Scheme, Callable[[bytes, bytes], dict[str, str]]] = {
    Scheme.GITHUB: lambda key, body: {"X-Hub-Signature-256": f"sha256={hmac.digest(key, body, sha256).hex()}"},
    Scheme.SHOPIFY: lambda key, body: {
        "X-Shopify-Hmac-Sha256": base64.b64encode(hmac.digest(key, body, sha256)).decode()
    },
    Scheme.STRIPE: lambda key, body: {
        "Stripe-Signature": f"t=5,v1={hmac.digest(key, b'5.' + body, sha256).hex()}",
    },
}


@given(st.sampled_from(sorted(SIGN)), st.binary(max_size=60), st.integers(0, 500), st.integers(1, 255))
def test_no_byte_of_a_body_may_change(scheme: Scheme, body: bytes, at: int, flip: int) -> None:
    request = RawRequest("POST", "/", tuple(SIGN[scheme](b"key", body).items()), body)
    example = Example(scheme, "key", request, "", at_s=5)
    check(example)
    if body:
        forged = bytearray(body)
        forged[at % len(body)] ^= flip
        refused(example, replace(request, body=bytes(forged)))


def test_svix_signs_one_set_of_fields() -> None:
    """What is not signed is no id: neither set is filled up from the other, and an id of the other name is the same."""
    named, plain = (one for one in PUBLISHED if one.scheme is Scheme.SVIX)
    assert named.signature == "svix-signature"
    check(named, with_header(named.request, "webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"))
    refused(named, with_header(named.request, "webhook-id", "forged"))
    for part in ("id", "timestamp", "signature"):
        value = dict(plain.request.headers)[f"webhook-{part}"]
        refused(plain, with_header(plain.request, f"svix-{part}", value))
        refused(plain, with_header(plain.request, f"svix-{part}", ""))
        mixed = with_header(named.request, f"svix-{part}", None)
        refused(named, with_header(mixed, f"webhook-{part}", value))


def test_a_secret_with_white_space_at_its_ends_is_none() -> None:
    for secret in ("secret\n", " secret"):
        with pytest.raises(InvalidSecret) as caught:
            Verify(Scheme.GITHUB, ("S",), (secret,))
        assert "secret\n" not in str(caught.value)


def test_who_signs_is_not_asked_for_a_key_in_a_header() -> None:
    """Nobody signs that header: with it, one signed request would be any number of operations."""
    example = next(one for one in OF_PAYLOADS if one.scheme is Scheme.STRIPE)
    verify = Verify(example.scheme, ("S",), (example.secret,))
    request = with_header(example.request, "Idempotency-Key", "another")
    assert example.at_s is not None
    now_ms = example.at_s * 1_000
    for source, key in (
        (replace(SHIPPED["stripe"], verify=verify), "evt_1Qk3MadeUp0001"),
        (replace(SHIPPED["stripe"], verify=verify, client_key=True), "another"),
        (SHIPPED["stripe"], "another"),
    ):
        assert resolve(source, request, now_ms=now_ms).key == key
    with pytest.raises(NoKey) as caught:
        resolve(replace(SHIPPED["http"], verify=verify), request, now_ms=now_ms)
    assert caught.value.field == "/idempotencyKey"
    body = b'{"idempotencyKey":"signed"}'
    digest = hmac.digest(example.secret.encode(), f"{example.at_s}.".encode() + body, sha256).hex()
    signed = with_header(replace(example.request, body=body), "Stripe-Signature", f"t={example.at_s},v1={digest}")
    assert resolve(replace(SHIPPED["http"], verify=verify), signed, now_ms=now_ms).key == "signed"
