"""Whether a request comes from who its source says: the signature schemes of senders. It fails closed.

Every scheme is an HMAC with SHA-256 over the body, and for most of them over a time. All secrets and all signatures
that a request brings are compared, in constant time, so that secrets can be rotated and nothing tells which one failed.
"""

from __future__ import annotations

import binascii
import enum
import hmac
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from idemactor.errors import IdemactorError, Unauthorized
from idemactor.gateway.request import RawRequest

TOLERANCE_MS_DEFAULT: Final = 300_000
"""How far the time of a signature may be from ours: five minutes, what Standard Webhooks, Stripe and Slack advise."""

SIGNATURES_MAX: Final = 32
"""How many signatures of one request are looked at; senders that rotate a secret send two."""

_STANDARD_PARTS: Final = ("id", "timestamp", "signature")
_MS_PER_S: Final = 1_000
_SECRET_PREFIX: Final = "whsec_"
_SECONDS: Final = re.compile(r"[0-9]{1,12}")
_HEX_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class InvalidSecret(IdemactorError, ValueError):
    """A secret that its scheme cannot use; the message never quotes it."""


class Scheme(enum.StrEnum):
    """How a sender signs."""

    STANDARD_WEBHOOKS = "standard-webhooks"
    """``webhook-id``, ``webhook-timestamp`` and ``webhook-signature`` (Standard Webhooks, signature scheme)."""
    SVIX = "svix"
    """The same in fields named ``svix-``, or in those of Standard Webhooks, as Svix sends without its name."""
    STRIPE = "stripe"
    """``Stripe-Signature: t=...,v1=...`` (Stripe, "verify webhook signatures manually")."""
    GITHUB = "github"
    """``X-Hub-Signature-256`` (GitHub, "validating webhook deliveries"); no time is signed."""
    SHOPIFY = "shopify"
    """``X-Shopify-Hmac-Sha256`` (Shopify, "verify a webhook"); no time is signed."""
    SLACK = "slack"
    """``X-Slack-Signature`` and ``X-Slack-Request-Timestamp`` (Slack, "verifying requests from Slack")."""


SIGNED_IDS: Final[Mapping[Scheme, frozenset[str]]] = {
    Scheme.STANDARD_WEBHOOKS: frozenset({"webhook-id"}),
    Scheme.SVIX: frozenset({"svix-id", "webhook-id"}),
    Scheme.STRIPE: frozenset(),
    Scheme.GITHUB: frozenset(),
    Scheme.SHOPIFY: frozenset(),
    Scheme.SLACK: frozenset(),
}
"""The header fields, in lower case, that may be an id and are signed; of the rest of a request only the body is."""
TIMELESS: Final = frozenset({Scheme.GITHUB, Scheme.SHOPIFY})
"""The schemes that sign no time."""


@dataclass(frozen=True, slots=True)
class Verify:
    """What a sender's signature is checked with.

    Attributes:
        scheme: How it signs.
        secret_env: The environment variables that hold its secrets: the present one, and while it is rotated
            the one before.
        secrets: What they hold, in the same order; shown nowhere.
        tolerance_ms: How far the time of a signature may be from ours, for the schemes that sign one.

    Raises:
        InvalidSecret: On construction: there is none, or one is blank or not in the form of its scheme.
    """

    scheme: Scheme
    secret_env: tuple[str, ...]
    secrets: tuple[str, ...] = field(repr=False)
    tolerance_ms: int = TOLERANCE_MS_DEFAULT
    keys: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.secrets:
            raise InvalidSecret("there is no secret")
        object.__setattr__(self, "keys", tuple(_key(self.scheme, secret) for secret in self.secrets))


def check_signature(verify: Verify, request: RawRequest, *, now_ms: int) -> None:
    """Accept ``request`` as its sender's.

    Raises:
        Unauthorized: A field of the signature is missing, sent twice or malformed, its time is too far from
            ``now_ms``, or no signature is right.
    """
    signed = _READ[verify.scheme](request)
    if signed.at_s is not None and abs(now_ms - signed.at_s * _MS_PER_S) > verify.tolerance_ms:
        raise Unauthorized(f"the time of the signature in {signed.name} is too far from now", field=signed.field)
    found = False
    for key in verify.keys:
        expected = hmac.digest(key, signed.content, sha256)
        for signature in signed.signatures[:SIGNATURES_MAX]:
            # No short cut: which secret and which signature are right takes the same time to find out.
            found |= hmac.compare_digest(expected, signature)
    if not found:
        raise Unauthorized(f"the signature in {signed.name} is not the sender's", field=signed.field)


@dataclass(frozen=True, slots=True)
class _Signed:
    """What a request says about its signature.

    Attributes:
        name: The header field in which the signatures stand.
        content: The bytes that are signed.
        signatures: The digests that are claimed.
        at_s: When it was signed, seconds since the epoch, where that is signed too.
    """

    name: str
    content: bytes
    signatures: tuple[bytes, ...]
    at_s: int | None = None

    @property
    def field(self) -> str:
        """Where they stand, as a refusal names it."""
        return f"header:{self.name}"


def _key(scheme: Scheme, secret: str) -> bytes:
    """The key of the HMAC; only Standard Webhooks encode theirs."""
    if not secret.strip():
        raise InvalidSecret("the secret is blank")
    if secret != secret.strip():
        raise InvalidSecret("the secret has white space at its ends")
    if scheme not in (Scheme.STANDARD_WEBHOOKS, Scheme.SVIX):
        return secret.encode("utf-8", "surrogateescape")
    try:
        key = binascii.a2b_base64(secret.removeprefix(_SECRET_PREFIX), strict_mode=True)
    except ValueError:
        raise InvalidSecret('the secret is "whsec_" and base64') from None
    if not key:
        raise InvalidSecret("the secret is empty")
    return key


def _one(request: RawRequest, name: str) -> str:
    values = request.header(name)
    if len(values) != 1 or not values[0]:
        raise Unauthorized(f"the request has no {name} field, or several", field=f"header:{name}")
    return values[0]


def _seconds(text: str, name: str) -> int:
    if _SECONDS.fullmatch(text) is None:
        raise Unauthorized(f"the time in the request's {name} field is malformed", field=f"header:{name}")
    return int(text)


def _hex(texts: Iterator[str]) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(text) for text in texts if _HEX_DIGEST.fullmatch(text))


def _base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return b""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _standard(prefix: str) -> Callable[[RawRequest], _Signed]:
    def read(request: RawRequest) -> _Signed:
        name, time, place = (f"{prefix}-{part}" for part in _STANDARD_PARTS)
        said, at, signatures = _one(request, name), _one(request, time), _one(request, place)
        content = b".".join((_bytes(said), _bytes(at), request.body))
        # Other versions, asymmetric ones too, may stand beside v1: they are not looked at.
        claimed = (text.removeprefix("v1,") for text in signatures.split(" ") if text.startswith("v1,"))
        return _Signed(place, content, tuple(map(_base64, claimed)), _seconds(at, time))

    return read


def _svix(request: RawRequest) -> _Signed:
    prefix = "svix" if any(request.header(f"svix-{part}") for part in _STANDARD_PARTS) else "webhook"
    signed = _standard(prefix)(request)
    # An id of the other name is not signed; it may be a copy, and it may be anybody's.
    others = request.header("webhook-id") if prefix == "svix" else []
    if any(other != _one(request, "svix-id") for other in others):
        raise Unauthorized("the request has a webhook-id field that is not its svix-id", field="header:webhook-id")
    return signed


def _stripe(request: RawRequest) -> _Signed:
    name = "Stripe-Signature"
    pairs = [part.strip().partition("=") for part in _one(request, name).split(",")]
    times = [value for key, _, value in pairs if key == "t"]
    if len(times) != 1:
        raise Unauthorized(f"the request's {name} field has no time, or several", field=f"header:{name}")
    signatures = _hex(value for key, _, value in pairs if key == "v1")
    at_s = _seconds(times[0], name)
    return _Signed(name, b".".join((_bytes(times[0]), request.body)), signatures, at_s)


def _github(request: RawRequest) -> _Signed:
    name = "X-Hub-Signature-256"
    prefix, _, digest = _one(request, name).partition("=")
    return _Signed(name, request.body, _hex(iter([digest] if prefix == "sha256" else [])))


def _shopify(request: RawRequest) -> _Signed:
    name = "X-Shopify-Hmac-Sha256"
    return _Signed(name, request.body, (_base64(_one(request, name)),))


def _slack(request: RawRequest) -> _Signed:
    name, time = "X-Slack-Signature", "X-Slack-Request-Timestamp"
    at = _one(request, time)
    version, _, digest = _one(request, name).partition("=")
    content = b":".join((b"v0", _bytes(at), request.body))
    return _Signed(name, content, _hex(iter([digest] if version == "v0" else [])), _seconds(at, time))


_READ: Final[Mapping[Scheme, Callable[[RawRequest], _Signed]]] = {
    Scheme.STANDARD_WEBHOOKS: _standard("webhook"),
    Scheme.SVIX: _svix,
    Scheme.STRIPE: _stripe,
    Scheme.GITHUB: _github,
    Scheme.SHOPIFY: _shopify,
    Scheme.SLACK: _slack,
}
