"""Signatures of what is delivered, as Standard Webhooks say (its specification, "signature scheme"). Pure.

Made by the library of those who wrote it. It signs text, and an intent may be any bytes: what is no UTF-8 is put
together here in the same way, and signed by the library's HMAC.
"""

from __future__ import annotations

import base64
import datetime
from typing import Final

from standardwebhooks.webhooks import Webhook, hmac_data

_MS_PER_S: Final = 1_000


class Signer:
    """Signs with every key of a destination.

    Args:
        keys: Decoded secrets; without any, nothing is signed.
    """

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self._keys = keys
        self._webhooks = tuple(Webhook(key) for key in keys)

    def headers(self, operation_id: str, body: bytes, now_ms: int) -> tuple[tuple[str, str], ...]:
        """The fields of a request: the id is the operation's, so that its receiver recognises a repeat by it.

        Args:
            now_ms: When it is sent, milliseconds since the epoch: a receiver refuses what is older than minutes.
        """
        seconds = now_ms // _MS_PER_S
        named = (("webhook-id", operation_id), ("webhook-timestamp", str(seconds)))
        if not self._keys:
            return named
        return (*named, ("webhook-signature", " ".join(self._signatures(operation_id, body, seconds))))

    def _signatures(self, operation_id: str, body: bytes, seconds: int) -> list[str]:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            content = f"{operation_id}.{seconds}.".encode() + body
            return ["v1," + base64.b64encode(hmac_data(key, content)).decode() for key in self._keys]
        at = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        return [webhook.sign(operation_id, at, text) for webhook in self._webhooks]
