"""Every bound that the contract names, in one place: the contract's "numbers that hold" (its section 8)."""

from __future__ import annotations

from typing import Final

DAY_MS: Final = 86_400_000
"""Milliseconds in a day."""

KEY_CHARS_MAX: Final = 256
NAME_CHARS_MAX: Final = 63
"""Of a namespace, a tenant, a token or a source."""
HOLDER_CHARS_MAX: Final = 128
REQUEST_ID_CHARS_MAX: Final = 128
FINGERPRINT_CHARS_MAX: Final = 128
REASON_CHARS_MAX: Final = 512

OUTCOME_BYTES_DEFAULT: Final = 65_536
OUTCOME_BYTES_MAX: Final = 1_048_576
OUTCOME_STATUS_MIN: Final = 100
OUTCOME_STATUS_MAX: Final = 599

BODY_BYTES_MAX: Final = 1_048_576
"""The largest request body of an ordinary call, bytes."""
OUTCOME_BODY_BYTES_MAX: Final = 2_097_152
"""The largest request body of a call that may carry an outcome (commit, accept, resolve), bytes."""
FRAME_BYTES_MAX: Final = 2_097_152 + 65_536
"""The largest MessagePack-RPC frame, bytes."""
NESTING_MAX: Final = 64
VALUES_MAX: Final = 100_000
"""The most values in one request: more would hold everybody up for longer than a decision may take."""

MAILBOX_COMMANDS_MIN: Final = 4_096
QUEUE_MS_DEFAULT: Final = 1_000
"""How long a command may wait for its turn behind others of its tenant."""
BATCH_OPS_MAX: Final = 1_000
BATCH_ANSWER_BYTES_MAX: Final = 67_108_864
"""The stored outcomes in the answer of one batch together, bytes as sent; those beyond it are to be asked for again."""
WAIT_MS_MAX: Final = 60_000
LEASE_MS_MIN: Final = 1
LEASE_MS_MAX: Final = DAY_MS
TTL_MS_MIN: Final = 1
TTL_MS_MAX: Final = 400 * DAY_MS

LEASE_MS_DEFAULT: Final = 300_000
TTL_MS_DEFAULT: Final = 300_000
UNRESOLVED_TTL_MS_DEFAULT: Final = 7 * DAY_MS
RECORDS_DEFAULT: Final = 10_000_000
SHARDS_DEFAULT: Final = 4
CLOCK_BACKSTEP_MS_DEFAULT: Final = 300_000
UNAVAILABLE_AFTER_MS_DEFAULT: Final = 2_000

TOKEN_MAX: Final = 2**53 - 1
"""The largest fencing token: what every JSON reader holds exactly."""
EARLIER_TOKENS_MAX: Final = 16
"""How many earlier attempts of an operation are remembered as evidence."""

LIST_LIMIT_DEFAULT: Final = 100
LIST_LIMIT_MAX: Final = 1_000
INCIDENTS_BYTES_MAX: Final = 33_554_432
"""A page of incidents, over all shards, ends where their outcomes are as large together, bytes as sent."""
RETRY_AFTER_S_MAX: Final = 5

ORDER_KEY_CHARS_MAX: Final = 256
HORIZON_MS_DEFAULT: Final = DAY_MS
"""How long an intent is tried at most, unless the namespace says otherwise."""
HORIZON_MS_MAX: Final = 400 * DAY_MS
INTENT_BYTES_DEFAULT: Final = 262_144
INTENT_BYTES_MAX: Final = 1_048_576
INTENT_HEADERS_MAX: Final = 64
EVENTS_PER_COMMIT_MAX: Final = 100
EVENTS_BYTES_MAX: Final = 1_048_576
"""The bodies and headers of one commit's events together, bytes."""
OUTBOX_ENTRIES_MAX: Final = 2_000_000
"""What may wait in one shard's outbox: each takes about 250 bytes of memory."""
POLL_MAX: Final = 1_000
"""The most entries that one poll takes."""
POLL_BYTES_MAX: Final = 1_048_576
"""A poll stops taking once what it took is as large, in bytes of bodies and headers; the first entry always fits."""
VISIBILITY_MS_DEFAULT: Final = 30_000
