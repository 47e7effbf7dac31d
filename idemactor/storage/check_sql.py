"""What ``check.py`` asks a file: each query of ``IMPOSSIBLE`` finds the ids of rows that no batch can have written."""

from __future__ import annotations

from typing import Final

from idemactor.core.delivery import Ending
from idemactor.core.limits import EARLIER_TOKENS_MAX
from idemactor.storage.schema import (
    DELIVERY_COLUMNS,
    EVENT_COLUMNS,
    INTENT_COLUMNS,
    RECORD_COLUMNS,
    TOMBSTONE_COLUMNS,
)

_RECORD_NEEDS: Final = (
    "attempt",
    "token",
    "operation_id",
    "first_seen_at",
    "reserved_at",
    "accepted",
    "contested",
    "has_outcome",
)
_TOMBSTONE_NEEDS: Final = ("tomb_operation_id", "tomb_expires_at", "tomb_reported")


def _any_null(columns: tuple[str, ...]) -> str:
    return " OR ".join(f"{name} IS NULL" for name in columns)


def _any_set(columns: tuple[str, ...]) -> str:
    return " OR ".join(f"{name} IS NOT NULL" for name in columns)


_ENTRIES: Final = {
    "entries with a state that does not exist": "state NOT BETWEEN 0 AND 3",
    "entries with neither record nor tombstone": "state IS NULL AND tomb_token IS NULL",
    "records that lack a field": f"state IS NOT NULL AND ({_any_null(_RECORD_NEEDS)})",
    "entries with fields of a record that is not there": f"state IS NULL AND ({_any_set(RECORD_COLUMNS)})",
    "tombstones that lack a field": f"tomb_token IS NOT NULL AND ({_any_null(_TOMBSTONE_NEEDS)})",
    "entries with fields of a tombstone that is not there": (f"tomb_token IS NULL AND ({_any_set(TOMBSTONE_COLUMNS)})"),
    "committed records without the time of commit or of expiry": (
        "state = 3 AND (committed_at IS NULL OR expires_at IS NULL)"
    ),
    "committed records with a lease": "state = 3 AND lease_expires_at IS NOT NULL",
    "unsettled records without a lease": "state < 3 AND lease_expires_at IS NULL AND has_delivery IS NULL",
    "unsettled records with what only a committed one has": (
        "state < 3 AND (committed_at IS NOT NULL OR expires_at IS NOT NULL OR has_outcome = 1 OR accepted = 1)"
    ),
    "records with an attempt below 1 or a token below their entry's": (
        "attempt < (has_delivery IS NULL) OR token < id AND id > :merged"
    ),
    "records whose token is their tombstone's": "token = tomb_token",
    "records with half a fingerprint": "(fingerprint IS NULL) <> (fingerprint_rule IS NULL)",
    "records with an unreadable list of earlier tokens": (
        "earlier IS NOT NULL AND (NOT json_valid(earlier)"
        f" OR json_array_length(earlier) NOT BETWEEN 1 AND {EARLIER_TOKENS_MAX})"
    ),
    "flags that are neither 0 nor 1": (
        "accepted NOT IN (0, 1) OR contested NOT IN (0, 1) OR has_outcome NOT IN (0, 1) OR tomb_reported NOT IN (0, 1)"
        " OR has_delivery <> 1"
    ),
    "entries that time ends but no alarm does": (
        "alarm_at IS NULL AND (state IN (0, 3) OR unresolved_expires_at IS NOT NULL AND state = 1"
        " OR tomb_token IS NOT NULL)"
    ),
    "records with a token above the last one granted": "max(id, token) > :last_token OR id > :last_token",
    "tombstones with a token above the last one granted": "tomb_token > :last_token",
    "records with times later than the shard's latest": (
        "first_seen_at > :latest_ms OR reserved_at > :latest_ms OR committed_at > :latest_ms"
    ),
    "records with an outcome that is not there": (
        "has_outcome = 1 AND NOT EXISTS (SELECT 1 FROM outcomes WHERE outcomes.id = records.id)"
    ),
    "records with a delivery that is not there": (
        "has_delivery = 1 AND NOT EXISTS (SELECT 1 FROM deliveries WHERE deliveries.id = records.id)"
    ),
    "tombstones with an end that does not exist": f"tomb_ending NOT BETWEEN 0 AND {max(Ending)}",
}

_DELIVERIES: Final = {
    "deliveries with an end or a flag that does not exist": (
        f"ending NOT BETWEEN 0 AND {max(Ending)} OR perhaps_sent NOT IN (0, 1)"
    ),
    "deliveries of another operation than their record's": "deliveries.operation_id <> records.operation_id",
    "deliveries that ended and their record did not, or the other way round": "(ending IS NULL) <> (state < 3)",
    "deliveries that ended and are due": "ending IS NOT NULL AND due_at IS NOT NULL",
    "queued deliveries that are never due": (
        "ending IS NULL AND state = 0 AND lease_expires_at IS NULL AND due_at IS NULL"
    ),
    "deliveries that have not ended and lack their intent": (
        "ending IS NULL AND NOT EXISTS (SELECT 1 FROM intents WHERE intents.id = deliveries.id)"
    ),
}
"""Of deliveries that belong to a record."""


def _without_delivery(table: str) -> str:
    return (
        f"SELECT id FROM {table} WHERE NOT EXISTS"
        f" (SELECT 1 FROM records WHERE records.id = {table}.id AND records.has_delivery = 1) ORDER BY id"
    )


TWINS: Final = "SELECT max(id) FROM records GROUP BY tenant, namespace, key HAVING count(*) > 1 ORDER BY 1"

IMPOSSIBLE: Final = {
    **{what: f"SELECT id FROM records WHERE {where} ORDER BY id" for what, where in _ENTRIES.items()},
    **{
        what: (
            "SELECT deliveries.id FROM deliveries JOIN records ON records.id = deliveries.id AND has_delivery = 1"
            f" WHERE {where} ORDER BY deliveries.id"
        )
        for what, where in _DELIVERIES.items()
    },
    "deliveries without a record": _without_delivery("deliveries"),
    "intents without a delivery": _without_delivery("intents"),
    "intents that cannot be read": "SELECT id FROM intents WHERE NOT json_valid(headers) ORDER BY id",
    "events that cannot be read": "SELECT seq FROM events WHERE NOT json_valid(headers) ORDER BY seq",
    "events later than the shard's latest time": "SELECT seq FROM events WHERE committed_at > :latest_ms ORDER BY seq",
    "outcomes without a record": (
        "SELECT id FROM outcomes WHERE NOT EXISTS"
        " (SELECT 1 FROM records WHERE records.id = outcomes.id AND records.has_outcome = 1) ORDER BY id"
    ),
    "outcomes that cannot be read": (
        "SELECT id FROM outcomes WHERE NOT json_valid(headers) OR status NOT BETWEEN 100 AND 599"
        " OR omitted NOT IN (0, 1) ORDER BY id"
    ),
    "keys that are there twice": TWINS,
    "tokens that two records have": (
        "SELECT max(id) FROM records WHERE token > :merged GROUP BY token HAVING count(*) > 1 ORDER BY 1"
    ),
    "incidents with a token above the last one granted": (
        "SELECT id FROM incidents WHERE token > :last_token OR present_token > :last_token ORDER BY id"
    ),
    "incidents later than the shard's latest time": "SELECT id FROM incidents WHERE at > :latest_ms ORDER BY id",
    "incidents whose outcome cannot be read": (
        "SELECT id FROM incidents WHERE status IS NOT NULL"
        " AND (body IS NULL OR omitted IS NULL OR headers IS NULL OR NOT json_valid(headers)) ORDER BY id"
    ),
}
"""What is wrong, and the query that finds the ids of the rows where it is."""

COUNTS: Final = (
    "SELECT coalesce(sum(state = 0), 0), coalesce(sum(state = 1), 0), coalesce(sum(state = 2), 0),"
    " coalesce(sum(state = 3), 0), count(tomb_token), (SELECT count(*) FROM incidents) FROM records"
)
OWNERS: Final = "SELECT id, hash, tenant, namespace, key FROM records"
EVENT_OWNERS: Final = "SELECT seq, tenant, namespace, key FROM events"

_ADDED_IN_2: Final = {
    "deliveries": ("id", *DELIVERY_COLUMNS),
    "intents": ("id", *INTENT_COLUMNS),
    "events": EVENT_COLUMNS,
}
_RECORDS_OF_1: Final = """
CREATE TEMP VIEW records AS SELECT *, NULL AS has_delivery, NULL AS tomb_ending FROM main.records;
"""
FORMAT_1_AS_2: Final = _RECORDS_OF_1 + "".join(
    f"CREATE TEMP VIEW {table} AS SELECT {', '.join(f'NULL AS {name}' for name in columns)} WHERE 0;"
    for table, columns in _ADDED_IN_2.items()
)
"""Lets a file of format 1, which is to be left as it is, answer the questions above: temporary names come first."""

_COUNTED: Final = """
WITH parts (tenant, namespace, records, pending, in_doubt, committed, contested, incidents) AS (
    SELECT tenant, namespace, count(*), coalesce(sum(state = 0), 0), coalesce(sum(state IN (1, 2)), 0),
        coalesce(sum(state = 3), 0), coalesce(sum(contested), 0), 0 FROM records GROUP BY tenant, namespace
    UNION ALL
    SELECT tenant, namespace, 0, 0, 0, 0, 0, count(*) FROM incidents GROUP BY tenant, namespace
), counted (tenant, namespace, records, pending, in_doubt, committed, contested, incidents) AS (
    SELECT tenant, namespace, sum(records), sum(pending), sum(in_doubt), sum(committed), sum(contested),
        sum(incidents) FROM parts GROUP BY tenant, namespace
)
"""
WRONG_TALLIES: Final = _COUNTED + "SELECT tenant, namespace FROM (SELECT * FROM tallies EXCEPT SELECT * FROM counted)"
"""Counts that are not what is there."""
MISSING_TALLIES: Final = (
    _COUNTED + "SELECT tenant, namespace FROM counted"
    " WHERE (tenant, namespace) NOT IN (SELECT tenant, namespace FROM tallies)"
)
"""What is there and is not counted at all."""
COUNT_TALLIES: Final = (
    _COUNTED + "INSERT INTO tallies (tenant, namespace, records, pending, in_doubt, committed, contested, incidents)"
    " SELECT * FROM counted"
)
"""Makes the counts of a file that has none."""
