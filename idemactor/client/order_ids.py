"""The operation id as a downstream's name of an order: see ``core/order_ids.py``, which the gateway uses too."""

from __future__ import annotations

from idemactor.core.order_ids import (
    BASE36,
    BASE62,
    EXCHANGE_CHARS_MAX,
    binance_client_order_id,
    bybit_order_link_id,
    client_order_id,
)

__all__ = [
    "BASE36",
    "BASE62",
    "EXCHANGE_CHARS_MAX",
    "binance_client_order_id",
    "bybit_order_link_id",
    "client_order_id",
]
