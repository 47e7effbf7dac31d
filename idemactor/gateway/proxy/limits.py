"""The bounds of the reverse proxy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEADER_BYTES_DEFAULT: Final = 16_384
HEADER_BYTES_MAX: Final = 1_048_576
BODY_BYTES_DEFAULT: Final = 1_048_576
BODY_BYTES_MAX: Final = 67_108_864
"""Bodies are held in memory: a key and a fingerprint are made of the whole of one."""
CONCURRENT_DEFAULT: Final = 128
CONCURRENT_MAX: Final = 10_000
ANSWER_HEADER_BYTES_MAX: Final = 65_536
"""The longest header of an upstream's answer, and of each 1xx before it."""
UPSTREAM_IDLE_MS_DEFAULT: Final = 4_000
"""Many servers close a connection that was idle for five seconds; to reuse one at that very moment costs a doubt."""

READ_BYTES: Final = 65_536
WRITE_BYTES: Final = 65_536
"""An answer is written in pieces of this size, so that a slow client that does read is not cut off."""
INFORMATIONAL_MAX: Final = 16
"""How many 1xx may come before one answer."""
ANSWER_MS_MIN: Final = 1_000
"""How long a shard has for one answer, whatever patience its namespace has with one that cannot."""
HANGING_UP_MS: Final = 1_000
"""How long a shard has for a request that could wait, once its client sends no more: it may still read its answer."""
SETTLE_MS_MAX: Final = 300_000
"""How long it is tried, after its client was answered, to tell a shard what became of an attempt."""
SETTLING_MAX: Final = 10_000
"""How many of these may be under way: an outage must not fill the memory."""
RETRY_MS: Final = 50
"""The rest before a shard that could not answer is asked again; it doubles up to ``RETRY_MS_MAX``."""
RETRY_MS_MAX: Final = 1_000
RENEWALS_PER_LEASE: Final = 3
"""A lease is renewed this often while it would run, so that one lost renewal does not end it."""
RENEWAL_MS_MIN: Final = 10


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What a connection, a request or an upstream may take; times in milliseconds.

    Attributes:
        handshake_ms: The time for a TLS handshake.
        headers_ms: From the first byte of a request to the end of its headers.
        idle_ms: How long a client's connection may wait for a request.
        body_ms: From the end of the headers to the end of the body.
        write_ms: The time for a client to take ``WRITE_BYTES`` of an answer.
        linger_ms: How long a refused request is read on, so that closing does not destroy the answer.
        header_bytes_max: The request line and headers, bytes.
        answer_header_bytes_max: The same of an upstream's answer.
        body_bytes_max: The body of a request, bytes.
        concurrent_max: How many requests an upstream may have at once.
        upstream_idle_ms: How long a connection to an upstream is kept for the next request.
    """

    handshake_ms: int = 10_000
    headers_ms: int = 10_000
    idle_ms: int = 75_000
    body_ms: int = 30_000
    write_ms: int = 10_000
    linger_ms: int = 2_000
    header_bytes_max: int = HEADER_BYTES_DEFAULT
    answer_header_bytes_max: int = ANSWER_HEADER_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_DEFAULT
    concurrent_max: int = CONCURRENT_DEFAULT
    upstream_idle_ms: int = UPSTREAM_IDLE_MS_DEFAULT
