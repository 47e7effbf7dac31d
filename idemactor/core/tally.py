"""What a shard counts, per tenant and namespace."""

from __future__ import annotations

from dataclasses import dataclass

TallyKey = tuple[str, str]
"""(tenant, namespace)"""


@dataclass(slots=True)
class Tally:
    """What a shard counts for one tenant and namespace. ``in_doubt`` counts the lapsed that an alarm has seen."""

    records: int = 0
    pending: int = 0
    in_doubt: int = 0
    committed: int = 0
    contested: int = 0
    incidents: int = 0
