"""The sources that need no configuration, by name: the retry habits and ids of senders, as they document them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from idemactor.core.limits import DAY_MS
from idemactor.gateway.source import Answers, Bucket, Format, Normaliser, Source
from idemactor.gateway.verify import Scheme

_HOUR_MS: Final = 3_600_000

_AUTHORIZATION: Final = ("header:Authorization", "header:Cookie")

_HTTP: Final = Source("http", secrets=_AUTHORIZATION, answers=Answers(completed=409))
"""Clients that send ``Idempotency-Key``. They wait for the operation's own answer: where none is stored, any other
success would be taken for it."""

_HOOX: Final = Source(
    "hoox",
    format=Format.JSON,
    derive=("/exchange", "/symbol", "/action", "/quantity"),
    normalise={
        "/exchange": (Normaliser.TRIM,),
        "/symbol": (Normaliser.TRIM,),
        "/action": (Normaliser.TRIM,),
        "/quantity": (Normaliser.TRIM, Normaliser.DECIMAL),
    },
    mode="/test",
    exclude=("/apiKey",),
    secrets=("/apiKey", *_AUTHORIZATION),
    # Its signals come from TradingView, see below.
    retry_horizon_ms=30_000,
)
"""The trade webhook of the HOOX gateway: exchange, symbol, action and quantity are one order within a minute of its
first sighting."""

_TRADINGVIEW: Final = Source(
    "tradingview",
    derive=("path", "body"),
    secrets=("/passphrase", "/secret", "/token", "/apiKey", "/password", *_AUTHORIZATION),
    # It waits 3 s for an answer and resends on a 5xx alone, 5 s apart, at most three times: 3 * (3 + 5) + 3 s.
    retry_horizon_ms=30_000,
)
"""Alerts of TradingView: no header of one's own, no id. Where the message has no ``idempotencyKey``, the whole message
and the path it was sent to are one operation within a minute of the first sighting."""

_STRIPE: Final = Source(
    "stripe",
    format=Format.JSON,
    id=("/id",),
    # How many endpoints have yet to answer: it counts down from attempt to attempt.
    exclude=("/pending_webhooks",),
    secrets=("/data/object/client_secret", "header:Stripe-Signature", *_AUTHORIZATION),
    retry_horizon_ms=3 * DAY_MS,
    ttl_ms=4 * DAY_MS,
)
"""Events of Stripe: retried for three days, each attempt signed anew."""

_GITHUB: Final = Source(
    "github",
    id=("header:X-GitHub-Delivery",),
    secrets=("header:X-Hub-Signature-256", "header:X-Hub-Signature", *_AUTHORIZATION),
    # It never retries by itself; a delivery of the past three days can be sent again by hand.
    retry_horizon_ms=3 * DAY_MS,
    ttl_ms=4 * DAY_MS,
)
"""Deliveries of GitHub, as JSON or as a form: a redelivery keeps its id."""

_SHOPIFY: Final = Source(
    "shopify",
    format=Format.JSON,
    # An event's id is a shop's own, and the same for every subscription.
    id=(("header:X-Shopify-Event-Id", "header:X-Shopify-Shop-Domain"),),
    secrets=("header:X-Shopify-Hmac-Sha256", *_AUTHORIZATION),
    retry_horizon_ms=4 * _HOUR_MS,
    ttl_ms=DAY_MS,
)
"""Webhooks of Shopify: eight retries in four hours."""

_STANDARD: Final = Source(
    "standard-webhooks",
    id=("header:webhook-id",),
    secrets=("header:webhook-signature", *_AUTHORIZATION),
    # The schedule that the specification recommends ends after 75.5 hours.
    retry_horizon_ms=76 * _HOUR_MS,
    ttl_ms=4 * DAY_MS,
)
"""Senders that follow Standard Webhooks: the id stays, time and signature are those of the attempt."""

_SVIX: Final = replace(
    _STANDARD,
    name="svix",
    id=("header:svix-id", "header:webhook-id"),
    secrets=("header:svix-signature", "header:webhook-signature", *_AUTHORIZATION),
)
"""Senders that use Svix, whose fields have its name."""

_SLACK: Final = Source(
    "slack",
    format=Format.JSON,
    id=("/event_id",),
    exclude=("/token",),
    secrets=("/token", "header:X-Slack-Signature", *_AUTHORIZATION),
    # At once, after a minute, after five; apps with delayed events get them hourly for a day beyond that.
    retry_horizon_ms=DAY_MS + 10 * 60_000,
    ttl_ms=2 * DAY_MS,
)
"""Events of Slack: resent where there is no answer within three seconds."""

SHIPPED: Final[Mapping[str, Source]] = {
    source.name: source
    for source in (
        _HTTP,
        _HOOX,
        replace(_HOOX, name="hoox-minute", bucket=Bucket.MINUTE),
        replace(_HOOX, name="hoox-ttl", bucket=Bucket.TTL, ttl_ms=300_000),
        _TRADINGVIEW,
        _STRIPE,
        _GITHUB,
        _SHOPIFY,
        _STANDARD,
        _SVIX,
        _SLACK,
    )
}
"""Every one of them, by its name."""

SCHEMES: Final[Mapping[str, Scheme]] = {
    "stripe": Scheme.STRIPE,
    "github": Scheme.GITHUB,
    "shopify": Scheme.SHOPIFY,
    "standard-webhooks": Scheme.STANDARD_WEBHOOKS,
    "svix": Scheme.SVIX,
    "slack": Scheme.SLACK,
}
"""How the senders sign who do: what ``verify`` checks where it does not say."""
