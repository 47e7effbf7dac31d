"""What an item of an export must be, so that a server could have written it: bounds, characters, and what fits what.

Each rule names the member that breaks it. They are those of ``check_sql.py`` that concern one item, asked before
anything is made of it; and the bounds of the doors, so that no server meets what it would never have accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from idemactor.core import limits
from idemactor.core.delivery import OMITTED, Delivery, Event, Intent, NewEvent
from idemactor.core.intent_headers import check_intent_headers
from idemactor.core.keys import Identity, InvalidKey, InvalidNamespace, check_key, check_namespace
from idemactor.core.record import Entry, Incident, Outcome, Record, State, Tombstone
from idemactor.errors import InvalidRequest
from idemactor.storage.plain import NotPlain
from idemactor.storage.tokens import BEGAN_MS, TOKENS_BEFORE_COPIES, TOKENS_PER_MS

TOKENS_LEFT_MIN: Final = 2**50
"""How many tokens have to be left behind those of an export: a copy of a shard uses up no more in 35 years."""
TOKEN_READ_MAX: Final = limits.TOKEN_MAX - TOKENS_LEFT_MIN
TIME_MS_MAX: Final = BEGAN_MS + (limits.TOKEN_MAX - TOKENS_BEFORE_COPIES) // TOKENS_PER_MS
"""2162: when the tokens of copies are used up, and no server writes any more."""
PLACE_MAX: Final = TOKENS_BEFORE_COPIES - 1
"""Places in line are microseconds since the epoch; see ``tokens.py``."""
CONTENT_TYPE_CHARS_MAX: Final = 4 * limits.NAME_CHARS_MAX
RULE_CHARS_MAX: Final = 256
"""Of what a fingerprint was made under: more than the name of any rule has."""

_OPERATION_ID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
"""See ``core/ids.py``. Answers are made of ids as they are, without a thought of quotes."""
_EVENT_NUMBER: Final = re.compile("[.]([1-9][0-9]{0,2})")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_CONTROL_IN_LINES: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""As above, but tabs and the ends of lines pass."""
_BREAKS_A_HEADER: Final = re.compile("[\x00\r\n]")


def tokens_of(item: Entry | Incident) -> Iterator[tuple[str, int]]:
    """Every token that an item knows, and where it stands."""
    if isinstance(item, Incident):
        yield "token", item.token
        if item.present_token is not None:
            yield "present_token", item.present_token
        return
    if item.record is not None:
        yield "record.token", item.record.token
        for number, earlier in enumerate(item.record.earlier):
            yield f"record.earlier[{number}].token", earlier.token
    if item.tombstone is not None:
        yield "tombstone.token", item.tombstone.token


def times_of(item: Entry | Event | Incident) -> Iterator[tuple[str, int]]:
    """Every time at which something was decided that an item knows, and where it stands."""
    if isinstance(item, Incident):
        yield "at", item.at
    elif isinstance(item, Event):
        yield "committed_at", item.committed_at
    elif item.record is not None:
        yield "record.first_seen_at", item.record.first_seen_at
        yield "record.reserved_at", item.record.reserved_at
        if item.record.committed_at is not None:
            yield "record.committed_at", item.record.committed_at


def check_entry(entry: Entry, intent: Intent | None) -> None:
    """Accept an entry and its intent.

    Raises:
        NotPlain: No server can have written it.
    """
    record, tombstone = entry.record, entry.tombstone
    _check_identity(entry.identity)
    _within("id", entry.id, 1, TOKEN_READ_MAX)
    _time("alarm_at", entry.alarm_at)
    _check_tokens(entry)
    if record is None and tombstone is None:
        raise NotPlain("one of both is there", "record, tombstone")
    if record is not None:
        _check_record(record)
    if tombstone is not None:
        _check_tombstone(tombstone)
        _require(record is None or record.token != tombstone.token, "is not the record's", "tombstone.token")
    ends = tombstone is not None or (record is not None and _is_ended_by_time(record))
    _require(entry.alarm_at is not None or not ends, "is a time, where time ends what is there", "alarm_at")
    _check_intent(intent, None if record is None else record.delivery)


def check_event(event: Event) -> None:
    """Accept an event. Raises ``NotPlain`` where no server can have written it."""
    _check_identity(event.identity)
    _within("seq", event.seq, 1, PLACE_MAX)
    _id("operation_id", event.operation_id)
    number = _EVENT_NUMBER.fullmatch(event.id.removeprefix(event.operation_id))
    known = number is not None and int(number[1]) <= limits.EVENTS_PER_COMMIT_MAX
    _require(known, f"is the operation's id, a dot and a number up to {limits.EVENTS_PER_COMMIT_MAX}", "id")
    _time("committed_at", event.committed_at)
    content = event.content
    _text("content.order_key", content.order_key, limits.ORDER_KEY_CHARS_MAX, chars_min=1)
    if content.headers == (OMITTED,):
        _require(event.emptied() == event, "is empty where the content was forgotten", "content")
        return
    _check_content("content", content)
    _within("content's size", content.size(), 0, limits.EVENTS_BYTES_MAX)


def check_incident(incident: Incident) -> None:
    """Accept an incident. Raises ``NotPlain`` where no server can have written it."""
    _check_identity(incident.identity)
    _id("operation_id", incident.operation_id)
    _check_tokens(incident)
    _time("at", incident.at)
    _check_outcome("outcome", incident.outcome)


def check_head(exported_at: int, shards: int, last_token: int, latest_ms: int, shards_max: int) -> None:
    """Accept what an export says of itself. Raises ``NotPlain`` where no server can have written it."""
    _time("exported_at", exported_at)
    _within("shards", shards, 1, shards_max)
    _within("last_token", last_token, 0, TOKEN_READ_MAX)
    _time("latest_ms", latest_ms)


# ------------------------------------------------------------------------------------------------- parts of an entry


def _check_record(record: Record) -> None:
    dispatched = record.delivery is not None
    _within("record.attempt", record.attempt, 0 if dispatched else 1, TOKEN_READ_MAX)
    _id("record.operation_id", record.operation_id)
    for field, value in _times_of_record(record):
        _time(f"record.{field}", value)
    _within("record.ttl_ms", record.ttl_ms, limits.TTL_MS_MIN, limits.TTL_MS_MAX)
    _within("record.window_ms", record.window_ms, limits.TTL_MS_MIN, limits.TTL_MS_MAX)
    _text("record.request_id", record.request_id, limits.REQUEST_ID_CHARS_MAX, chars_min=1)
    _text("record.holder", record.holder, limits.HOLDER_CHARS_MAX)
    _text("record.reason", record.reason, limits.REASON_CHARS_MAX, control=_CONTROL_IN_LINES)
    if record.fingerprint is not None:
        _text("record.fingerprint.value", record.fingerprint.value, limits.FINGERPRINT_CHARS_MAX, chars_min=1)
        _text("record.fingerprint.rule", record.fingerprint.rule, RULE_CHARS_MAX, chars_min=1)
    few = len(record.earlier) <= limits.EARLIER_TOKENS_MAX
    _require(few, f"has at most {limits.EARLIER_TOKENS_MAX} tokens", "record.earlier")
    _check_outcome("record.outcome", record.outcome)
    _check_state(record)
    if record.delivery is not None:
        _check_delivery(record, record.delivery)


def _times_of_record(record: Record) -> Iterator[tuple[str, int | None]]:
    yield "first_seen_at", record.first_seen_at
    yield "reserved_at", record.reserved_at
    yield "lease_expires_at", record.lease_expires_at
    yield "unresolved_expires_at", record.unresolved_expires_at
    yield "committed_at", record.committed_at
    yield "expires_at", record.expires_at


def _check_state(record: Record) -> None:
    if record.state is State.COMMITTED:
        for field in ("committed_at", "expires_at"):
            _require(getattr(record, field) is not None, "is a time in a committed record", f"record.{field}")
        _require(record.lease_expires_at is None, "is null in a committed record", "record.lease_expires_at")
        return
    leased = record.lease_expires_at is not None or record.delivery is not None
    _require(leased, "is a time until the record is committed", "record.lease_expires_at")
    for field in ("committed_at", "expires_at", "outcome"):
        _require(getattr(record, field) is None, "is null until the record is committed", f"record.{field}")
    _require(not record.accepted, "is false until the record is committed", "record.accepted")


def _check_delivery(record: Record, delivery: Delivery) -> None:
    ended, at = delivery.ending is not None, "record.delivery"
    _within(f"{at}.seq", delivery.seq, 1, PLACE_MAX)
    _text(f"{at}.order_key", delivery.order_key, limits.ORDER_KEY_CHARS_MAX, chars_min=1)
    _time(f"{at}.due_at", delivery.due_at)
    _time(f"{at}.deliver_until", delivery.deliver_until)
    done = record.state is State.COMMITTED
    _require(ended == done, "is there in a committed record, and in no other", f"{at}.ending")
    _require(not ended or delivery.due_at is None, "is null of what has ended", f"{at}.due_at")
    queued = record.state is State.PENDING and record.lease_expires_at is None
    _require(not queued or delivery.due_at is not None, "is a time of what waits", f"{at}.due_at")


def _check_tombstone(tombstone: Tombstone) -> None:
    _id("tombstone.operation_id", tombstone.operation_id)
    _text("tombstone.request_id", tombstone.request_id, limits.REQUEST_ID_CHARS_MAX, chars_min=1)
    _time("tombstone.expires_at", tombstone.expires_at)


def _check_intent(intent: Intent | None, delivery: Delivery | None) -> None:
    if intent is None:
        _require(delivery is None or delivery.ending is not None, "is there of what is to be delivered", "intent")
        return
    _require(delivery is not None, "is null where there is no delivery", "intent")
    _check_content("intent", intent)
    _within("intent's size", intent.size(), 0, limits.INTENT_BYTES_MAX)


def _check_content(at: str, content: Intent | NewEvent) -> None:
    """Accept what the relay sends, or shows to whoever polls."""
    _text(f"{at}.content_type", content.content_type, CONTENT_TYPE_CHARS_MAX)
    try:
        check_intent_headers(content.content_type, content.headers, field=at)
    except InvalidRequest as error:
        raise NotPlain(error.detail, error.field or at) from None


def _check_outcome(at: str, outcome: Outcome | None) -> None:
    if outcome is None:
        return
    _within(f"{at}.status", outcome.status, limits.OUTCOME_STATUS_MIN, limits.OUTCOME_STATUS_MAX)
    _headers(f"{at}.headers", outcome.headers)
    _within(f"{at}'s size", outcome.size(), 0, limits.OUTCOME_BYTES_MAX)
    _require(not outcome.omitted or outcome.size() == 0, "is a status alone where the rest was left out", at)


def _is_ended_by_time(record: Record) -> bool:
    lapsed = record.state is State.LAPSED and record.unresolved_expires_at is not None
    return lapsed or record.state in (State.PENDING, State.COMMITTED)


# ------------------------------------------------------------------------------------------------------- single members


def _check_identity(identity: Identity) -> None:
    try:
        check_key(identity.key)
        check_namespace(identity.namespace)
    except (InvalidKey, InvalidNamespace) as error:
        raise NotPlain(str(error), "identity") from None
    try:
        # Tenants have names as namespaces have.
        check_namespace(identity.tenant)
    except InvalidNamespace:
        raise NotPlain("is a name as a namespace has one", "identity.tenant") from None


def _check_tokens(item: Entry | Incident) -> None:
    for field, token in tokens_of(item):
        _within(field, token, 1, TOKEN_READ_MAX)


def _require(holds: bool, what: str, field: str) -> None:
    if not holds:
        raise NotPlain(what, field)


def _within(field: str, value: int | None, least: int, most: int) -> None:
    _require(value is None or least <= value <= most, f"is {least} to {most}", field)


def _time(field: str, value: int | None) -> None:
    _within(field, value, 0, TIME_MS_MAX)


def _id(field: str, value: str) -> None:
    _require(_OPERATION_ID.fullmatch(value) is not None, "is a UUID of version 7, in lower case", field)


def _text(
    field: str, value: str | None, chars_max: int, *, chars_min: int = 0, control: re.Pattern[str] = _CONTROL
) -> None:
    if value is None:
        return
    _require(len(value) <= chars_max, f"has at most {chars_max} characters", field)
    _require(len(value) >= chars_min, "is not empty", field)
    _require(control.search(value) is None, "holds no control character", field)


def _headers(field: str, pairs: tuple[tuple[str, str], ...]) -> None:
    for number, (name, value) in enumerate(pairs):
        good = name != "" and _CONTROL.search(name) is None and _BREAKS_A_HEADER.search(value) is None
        _require(good, "is the name and the value of a header field", f"{field}[{number}]")
