"""The bounds of the relay and the reconciler. Times in milliseconds."""

from __future__ import annotations

from typing import Final

from idemactor.core.limits import DAY_MS

DELIVERY_MS_MAX: Final = 3_600_000
"""The longest that a destination may be given for one request."""
CONCURRENCY_DEFAULT: Final = 8
CONCURRENCY_MAX: Final = 1_000
STATUS_AFTER_MS_DEFAULT: Final = 60_000
STATUS_AFTER_MS_MAX: Final = 30 * DAY_MS
FIRST_MS_DEFAULT: Final = 200
LONGEST_MS_DEFAULT: Final = 60_000
RETRY_MS_MAX: Final = DAY_MS
FACTOR_DEFAULT: Final = 2.0
FACTOR_MAX: Final = 10.0

LEASE_MARGIN_MS: Final = 5_000
"""How much longer a lease is than a request may take: the time to tell its shard the end, also while that recovers.
After a crash, this and ``timeout_ms`` is how long what was under way waits for the next one to take it up."""
SETTLE_MS_MIN: Final = 1_000
"""What of it has to be left when a request begins: whoever was held up for longer gives the entry back."""

SCAN_MS: Final = 1_000
"""Every shard is asked at least this often, whether or not a bell rang: a ring can be lost with a worker."""
ASK_MS: Final = 2_000
"""How long a shard has for one answer; meanwhile the others wait. What it claims later is given back."""
SETTLE_REST_MS: Final = 50
"""The rest before a shard that could not take the end of a delivery is told again; it doubles up to the next."""
SETTLE_REST_MS_MAX: Final = 1_000
TURNS_MAX: Final = 1_000
"""How many lines of ``order_key`` one question to a shard names."""
DRAIN_MS: Final = 20_000
"""How long a request that is under way may take on, once the server is told to stop; then it is cut off."""
RESTART_MS: Final = 1_000
"""The rest after a fault of our own, before a relay or a reconciler begins again."""

FAILURES_TO_OPEN: Final = 5
"""So many failures in a row, and a destination counts as down; a round of the reconciler ends there, too."""
PAUSE_MS_MIN: Final = 500
"""The first pause of a destination that is down, at least; each failed probe doubles it."""
PAUSE_MS_MAX: Final = 30_000
RETRY_AFTER_MS_MAX: Final = 3_600_000
"""What a destination asks for beyond this is not heard: an hour."""

RECONCILE_SCAN_MS: Final = 1_000
"""How often the shards are asked for what is in doubt; never for more than a tenth of the time."""
RECONCILE_SHARE: Final = 10
RECONCILE_SCAN_MS_MAX: Final = 60_000
RECONCILE_CONCURRENCY: Final = 4
RECONCILE_PAGE: Final = 500
