"""One spelling for what means the same, only where a source says so (contract, 9)."""

from __future__ import annotations

import enum


class Normaliser(enum.StrEnum):
    """What may be done to a value before it is used."""

    TRIM = "trim"
    UPPER = "upper"
    LOWER = "lower"
    DECIMAL = "decimal"
    SYMBOL = "symbol"
    PERPETUAL = "perpetual"
    UUID = "uuid"
