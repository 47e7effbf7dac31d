"""The words that a source's settings may be."""

from __future__ import annotations

import enum


class Format(enum.StrEnum):
    """How a body is read."""

    AUTO = "auto"
    """By its content type: JSON, a form, multipart by its parts, anything else byte by byte."""
    JSON = "json"
    FORM = "form"
    """``application/x-www-form-urlencoded``; members are its fields."""
    TEXT = "text"
    """UTF-8 text; members are the named groups of the source's pattern."""
    BYTES = "bytes"
    """Never read: JSON too is compared byte by byte, and a multipart body by its parts."""


class Bucket(enum.StrEnum):
    """How long a derived key stands for one operation."""

    WINDOW = "window"
    """``window_ms`` from the first sighting."""
    MINUTE = "minute"
    """One minute of the wall clock: a resend in the next one is another operation."""
    TTL = "ttl"
    """As long as any key: ``ttl_ms`` from the commit."""
