"""Which members each call has: the table that the parser reads and the OpenAPI document shows (contract, 5 and 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from idemactor.wire import fields
from idemactor.wire.fields import Field
from idemactor.wire.intents import EVENTS, INTENT, ORDER_KEY
from idemactor.wire.outcomes import OUTCOME
from idemactor.wire.raw_requests import REQUEST

# The key may come in a header instead, which counts as this member.
_KEY: Final = Field("key", fields.KEY, "What must not happen twice; compared exactly.", required=True)
_TOKEN: Final = Field("token", fields.TOKEN, "The fencing token of the attempt.", required=True)
_TTL_MS: Final = Field("ttl_ms", fields.TTL_MS, "How long the committed record blocks, from the commit.")
_OUTCOME: Final = Field("outcome", OUTCOME, "What the operation answered.")
_REASON: Final = Field("reason", fields.REASON, "Why, for people.")
_LEASE_MS: Final = Field("lease_ms", fields.LEASE_MS, "How long the holder may work.")

_SOURCE: Final = Field("source", fields.SOURCE, "Whose request it is: what finds its key. Together with request.")
_REQUEST: Final = Field("request", REQUEST, "The sender's request as it came, instead of a key and a payload.")

_FINGERPRINT: Final = Field(
    "fingerprint", fields.FINGERPRINT, "The caller's own digest of the payload; not beside a payload."
)
_PAYLOAD_JSON: Final = Field(
    "payload_json", fields.PAYLOAD_JSON, "The payload as JSON text, its decimals exact.", rpc_only=True
)

_ACQUIRING: Final = (
    _KEY,
    _SOURCE,
    _REQUEST,
    _FINGERPRINT,
    Field("payload", fields.PAYLOAD, "What the key stands for, to be fingerprinted by the namespace's rule."),
    _PAYLOAD_JSON,
    Field("request_id", fields.REQUEST_ID, "The caller's name for this one acquisition, fresh each time."),
    _TTL_MS,
    Field("window_ms", fields.TTL_MS, "How long the record blocks, from the first sighting; not beside ttl_ms."),
    Field("holder", fields.HOLDER, "Who asks, shown to those who find the key in flight."),
    Field("on_duplicate", fields.ON_DUPLICATE, "How a committed key answers this call."),
)

CALLS: Final[Mapping[str, tuple[Field, ...]]] = {
    "reserve": (
        *_ACQUIRING,
        _LEASE_MS,
        Field("wait_ms", fields.WAIT_MS, "How long to wait for a key in flight; not in a batch."),
    ),
    "accept": (*_ACQUIRING, _OUTCOME),
    "dispatch": (
        _KEY,
        Field("intent", INTENT, "The request that the destination gets.", required=True),
        _FINGERPRINT,
        Field("payload", fields.PAYLOAD, "What the key stands for; where it is left out, the intent's body."),
        _PAYLOAD_JSON,
        Field("order_key", ORDER_KEY, "Intents of one are delivered strictly one after the other."),
        Field("not_before", fields.TIME, "When it may first be sent, milliseconds since the epoch."),
        Field("expires_in_ms", fields.EXPIRES_IN_MS, "How long from now it is worth sending."),
        _TTL_MS,
    ),
    "commit": (_KEY, _TOKEN, _OUTCOME, _TTL_MS, Field("events", EVENTS, "What enters the outbox with the outcome.")),
    "release": (_KEY, _TOKEN, _REASON),
    "extend": (
        _KEY,
        _TOKEN,
        Field("lease_ms", fields.LEASE_MS, "How long the holder may go on working, from now.", required=True),
    ),
    "doubt": (_KEY, _TOKEN, _REASON),
    "resolve": (
        _KEY,
        _TOKEN,
        Field("verdict", fields.VERDICT, "What became of the operation.", required=True),
        _OUTCOME,
    ),
    "get": (_KEY,),
    "forget": (_KEY, Field("force", fields.FLAG, "Also where the key is pending or in doubt.")),
}
"""The members of each command, by its name."""

KEY: Final = (replace(_SOURCE, required=True), replace(_REQUEST, required=True))
"""The members of the dry run that tells the key of a request."""

PAGING: Final = (
    Field("cursor", fields.CURSOR, "Where the page before this one ended: its next."),
    Field("limit", fields.LIST_LIMIT, "How many at most; 100 where it is left out."),
)

RECORDS: Final = (
    Field("state", fields.STATE, "Only records that stand so; in_doubt finds the lapsed too."),
    Field("contested", fields.FLAG, "Only records that are, or are not, contested."),
    Field("older_than_ms", fields.AGE_MS, "Only records whose attempt began longer ago than this."),
    *PAGING,
)
"""The filters of a listing of records."""

STUCK_OLDER_THAN_MS_DEFAULT: Final = 60_000

STUCK: Final = (
    Field(
        "older_than_ms",
        fields.AGE_MS,
        "For how long something pends or waits to be delivered before it counts; a minute where it is left out.",
    ),
    PAGING[1],
)
"""The filters of what is stuck."""

INCIDENTS: Final = PAGING
"""The filters of a listing of incidents."""

ACKNOWLEDGE: Final = (Field("id", fields.INCIDENT_ID, "The incident's id, as listed.", required=True),)
"""Over HTTP the id is in the path."""

OPERATION: Final = (
    Field("operation_id", fields.OPERATION_ID, "The operation's id, as dispatch answered it.", required=True),
    Field("wait_ms", fields.WAIT_MS, "How long to wait for its end."),
)
"""Over HTTP the id is in the path."""

CANCEL: Final = OPERATION[:1]
"""Over HTTP the id is in the path."""

_ENTRY: Final = (
    Field("id", fields.ENTRY_ID, "The entry's id, as poll answered it.", required=True),
    _KEY,
    Field("token", fields.TOKEN, "The entry's token, as poll answered it.", required=True),
)

OUTBOX: Final[Mapping[str, tuple[Field, ...]]] = {
    "poll": (
        Field("max", fields.POLL_MAX, f"How many entries at most; {fields.POLL_DEFAULT} where it is left out."),
        Field("wait_ms", fields.WAIT_MS, "How long to wait for the first."),
        Field("visibility_ms", fields.LEASE_MS, "How long they are shown to nobody else."),
        Field("holder", fields.HOLDER, "Who takes them, for people."),
    ),
    "ack": (*_ENTRY, _OUTCOME, _TTL_MS),
    "nack": (
        *_ENTRY,
        Field("delay_ms", fields.DELAY_MS, "How long until it is shown again."),
        Field("failed", fields.FLAG, "It definitely did not happen, and is not to be tried again; intents only."),
        _REASON,
        _OUTCOME,
    ),
}
"""The calls of services that fetch their work; over RPC their names begin with ``outbox.``."""

EXCLUSIVE: Final = (
    ("fingerprint", "payload"),
    ("ttl_ms", "window_ms"),
    ("source", "key"),
    ("source", "fingerprint"),
    ("source", "payload"),
)
"""Members that say the same thing in two ways: a call has one of them."""

TOGETHER: Final = (("source", "request"),)
"""Members that come together or not at all."""
