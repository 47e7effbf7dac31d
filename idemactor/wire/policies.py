"""The published policy of a namespace (contract, 5 and 12)."""

from __future__ import annotations

from typing import Final

from idemactor.core import limits
from idemactor.core.policy import Policy

LIMITS: Final[dict[str, int]] = {
    "key_chars_max": limits.KEY_CHARS_MAX,
    "holder_chars_max": limits.HOLDER_CHARS_MAX,
    "request_id_chars_max": limits.REQUEST_ID_CHARS_MAX,
    "fingerprint_chars_max": limits.FINGERPRINT_CHARS_MAX,
    "reason_chars_max": limits.REASON_CHARS_MAX,
    "body_bytes_max": limits.BODY_BYTES_MAX,
    "outcome_body_bytes_max": limits.OUTCOME_BODY_BYTES_MAX,
    "frame_bytes_max": limits.FRAME_BYTES_MAX,
    "nesting_max": limits.NESTING_MAX,
    "batch_ops_max": limits.BATCH_OPS_MAX,
    "batch_answer_bytes_max": limits.BATCH_ANSWER_BYTES_MAX,
    "wait_ms_max": limits.WAIT_MS_MAX,
    "lease_ms_min": limits.LEASE_MS_MIN,
    "lease_ms_max": limits.LEASE_MS_MAX,
    "ttl_ms_min": limits.TTL_MS_MIN,
    "ttl_ms_max": limits.TTL_MS_MAX,
    "list_limit_max": limits.LIST_LIMIT_MAX,
    "order_key_chars_max": limits.ORDER_KEY_CHARS_MAX,
    "intent_headers_max": limits.INTENT_HEADERS_MAX,
    "events_per_commit_max": limits.EVENTS_PER_COMMIT_MAX,
    "events_bytes_max": limits.EVENTS_BYTES_MAX,
    "outbox_entries_max": limits.OUTBOX_ENTRIES_MAX,
    "poll_max": limits.POLL_MAX,
    "poll_bytes_max": limits.POLL_BYTES_MAX,
}
"""The bounds that a caller can run into, the same in every namespace."""


def policy_body(namespace: str, policy: Policy) -> dict[str, object]:
    """The settings of a namespace under their names, and the limits of the server."""
    rule = policy.fingerprint
    return {
        "namespace": namespace,
        "lease_ms": policy.lease_ms,
        "lease_total_max_ms": policy.lease_total_max_ms,
        "ttl_ms": policy.ttl_ms,
        "unresolved_ttl_ms": policy.unresolved_ttl_ms,
        "on_lease_expiry": policy.on_lease_expiry.value,
        "on_doubt": policy.on_doubt.value,
        "on_duplicate": policy.on_duplicate.value,
        "on_unavailable": policy.on_unavailable.value,
        "unavailable_after_ms": policy.unavailable_after_ms,
        "outcome_max_bytes": policy.outcome_max_bytes,
        "records_max": policy.records_max,
        "fingerprint": {
            "required": rule.required,
            "include": list(rule.include),
            "exclude": list(rule.exclude),
            "rule": rule.rule_id,
        },
        "dispatch": {
            "pushed": policy.dispatch.pushed,
            "downstream_dedups": policy.dispatch.recognised,
            "horizon_ms": policy.dispatch.horizon_ms,
            "intent_max_bytes": policy.dispatch.intent_max_bytes,
            "on_failure": policy.dispatch.on_failure.value,
        },
        "limits": dict(LIMITS),
    }
