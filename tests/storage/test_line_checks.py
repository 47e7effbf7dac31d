"""What an import takes of a member is what a door takes of it: two tables of rules, compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from idemactor.core import limits
from idemactor.core.delivery import Delivery, Event, Intent, NewEvent
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.record import Entry, Outcome, Record, State, Tombstone
from idemactor.errors import RequestError
from idemactor.storage.line_checks import check_entry, check_event
from idemactor.storage.plain import NotPlain
from idemactor.wire import fields
from idemactor.wire.fields import Dialect, Kind
from idemactor.wire.intents import EVENTS, INTENT, ORDER_KEY
from idemactor.wire.outcomes import OUTCOME
from tests.storage.samples import NOW, committed, dispatched, event, name, operation, pending

CHARACTERS = ("\x00", "\t", "\n", "\r", "\x1f", " ", "a", ":", "\x7f", "\x85", "\xa0", "ü", "日", "🦀", '"')
TEXTS = (
    "",
    *CHARACTERS,
    *(f"x{character}y" for character in CHARACTERS),
    *("x" * length for most in (128, 252, 256, 512) for length in (most, most + 1)),
    "content-length",
    "X-Own",
)


def with_record(**changes: Any) -> Entry:
    return pending(1, name("k"), **changes)


def with_content(**changes: Any) -> Event:
    made = event(1)
    return replace(made, content=replace(made.content, **changes))


def with_intent(**changes: Any) -> tuple[Entry, Intent]:
    return dispatched(1, name("k")), replace(Intent("", b""), **changes)


def a_record(entry: Entry) -> Record:
    assert entry.record is not None
    return entry.record


def ordered(order_key: str) -> tuple[Entry, Intent]:
    delivery = a_record(dispatched(1, name("k"))).delivery
    assert isinstance(delivery, Delivery)
    return dispatched(1, name("k"), delivery=replace(delivery, order_key=order_key)), Intent("", b"")


MEMBERS: dict[str, tuple[Kind, Callable[[str], Any], Callable[[str], Any]]] = {
    # What the door reads, how a caller says it, and what an import reads.
    "holder": (fields.HOLDER, str, lambda text: with_record(holder=text)),
    "request_id": (fields.REQUEST_ID, str, lambda text: with_record(request_id=text)),
    "reason": (fields.REASON, str, lambda text: with_record(reason=text)),
    "fingerprint": (fields.FINGERPRINT, str, lambda text: with_record(fingerprint=Fingerprint(text, "caller"))),
    "tombstone": (
        fields.REQUEST_ID,
        str,
        lambda text: Entry(1, name("k"), None, Tombstone(1, text, operation(1), NOW), NOW),
    ),
    "key": (fields.KEY, str, lambda text: pending(1, name(text))),
    "order_key": (ORDER_KEY, str, ordered),
    "intent's type": (INTENT, lambda text: {"content_type": text or None}, lambda text: with_intent(content_type=text)),
    "intent's field": (
        INTENT,
        lambda text: {"headers": [[text, "v"]]},
        lambda text: with_intent(headers=((text, "v"),)),
    ),
    "intent's value": (
        INTENT,
        lambda text: {"headers": [["a", text]]},
        lambda text: with_intent(headers=(("a", text),)),
    ),
    "event's type": (EVENTS, lambda text: [{"content_type": text or None}], lambda t: with_content(content_type=t)),
    "event's order_key": (EVENTS, lambda text: [{"order_key": text}], lambda text: with_content(order_key=text)),
    "event's field": (
        EVENTS,
        lambda text: [{"headers": [[text, "v"]]}],
        lambda text: with_content(headers=((text, "v"),)),
    ),
    "outcome's field": (
        OUTCOME,
        lambda text: {"status": 200, "headers": [[text, "v"]]},
        lambda text: committed(1, name("k"), outcome=Outcome(200, ((text, "v"),))),
    ),
    "outcome's value": (
        OUTCOME,
        lambda text: {"status": 200, "headers": [["a", text]]},
        lambda text: committed(1, name("k"), outcome=Outcome(200, (("a", text),))),
    ),
}


def door_takes(kind: Kind, said: Any) -> bool:
    try:
        kind.reader("member", Dialect.JSON)(said)
    except RequestError:
        return False
    return True


def import_takes(made: Entry | Event | tuple[Entry, Intent]) -> bool:
    try:
        match made:
            case Event():
                check_event(made)
            case Entry():
                check_entry(made, None)
            case (entry, intent):
                check_entry(entry, intent)
    except NotPlain:
        return False
    return True


@pytest.mark.parametrize("member", MEMBERS)
def test_an_import_takes_what_a_door_takes(member: str) -> None:
    kind, said, made = MEMBERS[member]
    by_door = {text: door_takes(kind, said(text)) for text in TEXTS}
    assert {text: import_takes(made(text)) for text in TEXTS} == by_door
    assert set(by_door.values()) == {True, False}


def test_what_a_server_makes_itself_is_taken() -> None:
    made = with_content(headers=(("x-trace", "1"),), order_key="o")
    assert import_takes(made)
    assert import_takes(made.emptied())
    assert import_takes(with_record(holder="relay 5b3c2c1e-7f7e-4a7c-9b61-9d8a3d4f6f10", reason="two\nlines"))
    assert import_takes(with_record(state=State.DOUBTED))
    content = NewEvent("", bytes(limits.EVENTS_BYTES_MAX))
    assert import_takes(replace(made, content=content))
    assert not import_takes(replace(made, content=replace(content, content_type="a")))
