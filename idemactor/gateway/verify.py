"""Whether a request comes from who its source says: the signature schemes of senders. It fails closed."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

TOLERANCE_MS_DEFAULT: Final = 300_000
"""How far the time of a signature may be from ours: what Standard Webhooks, Stripe and Slack advise."""


class Scheme(enum.StrEnum):
    """How a sender signs."""

    STANDARD_WEBHOOKS = "standard-webhooks"
    SVIX = "svix"
    STRIPE = "stripe"
    GITHUB = "github"
    SHOPIFY = "shopify"
    SLACK = "slack"


@dataclass(frozen=True, slots=True)
class Verify:
    """What a sender's signature is checked with.

    Attributes:
        scheme: How it signs.
        secret_env: The environment variables that hold its secrets: the present one, and while it is rotated
            the one before.
        secrets: What they hold; never empty in a server that runs, and shown nowhere.
        tolerance_ms: How far the time of a signature may be from ours, for the schemes that sign one.
    """

    scheme: Scheme
    secret_env: tuple[str, ...]
    secrets: tuple[str, ...] = field(repr=False)
    tolerance_ms: int = TOLERANCE_MS_DEFAULT
