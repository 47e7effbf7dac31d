"""Operation ids: UUIDs of version 7 (RFC 9562, section 5.7), made from a time and random bits that are given."""

from __future__ import annotations

from typing import Final

ENTROPY_BITS: Final = 74
"""Random bits of a UUIDv7: 12 after the version, 62 after the variant."""

_LOW_BITS: Final = 62
_LOW_MASK: Final = (1 << _LOW_BITS) - 1


def uuid7(now_ms: int, entropy: int) -> str:
    """The UUIDv7 of a time and random bits.

    Args:
        now_ms: Milliseconds since the epoch, UTC; 48 bits of it are kept.
        entropy: A random integer of ``ENTROPY_BITS`` bits.

    Returns:
        The canonical text form, 36 characters, lower case.
    """
    high = (now_ms & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | (entropy >> _LOW_BITS) & 0xFFF
    low = 0x8000_0000_0000_0000 | entropy & _LOW_MASK
    text = f"{high << 64 | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
