"""Listings of records and incidents: what a caller asks, what the shards are asked, and the page that comes of it.

A listing goes through the shards in order, and through each in order of id: an order that no change of the list
disturbs, so that a cursor, which is no more than a place in it, stays good (contract, 12).
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, TypeAlias, assert_never

from idemactor.core.limits import INCIDENTS_BYTES_MAX, LIST_LIMIT_DEFAULT, TOKEN_MAX
from idemactor.core.queries import Acknowledge, IncidentsPage, ListIncidents, ListRecords, RecordsPage
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.wire.calls import ACKNOWLEDGE, INCIDENTS, RECORDS
from idemactor.wire.fields import FLAG, Dialect, Field
from idemactor.wire.records import incident_body, record_body
from idemactor.wire.requests import Members, Scope, members_of

__all__ = [
    "Cursor",
    "Walk",
    "acknowledge_from",
    "decode_cursor",
    "encode_cursor",
    "incident_body",
    "incident_id",
    "incidents_walk",
    "parse_incident_id",
    "query_members",
    "record_body",
    "records_walk",
]

ListQuery: TypeAlias = ListRecords | ListIncidents
Page: TypeAlias = RecordsPage | IncidentsPage

_RECORDS: Final = {dialect: Members(RECORDS, dialect) for dialect in Dialect}
_INCIDENTS: Final = {dialect: Members(INCIDENTS, dialect) for dialect in Dialect}
_ACKNOWLEDGE: Final = {dialect: Members(ACKNOWLEDGE, dialect) for dialect in Dialect}

_PLACE: Final = struct.Struct(">IQ")
_CHECK_BYTES: Final = 4
_CURSOR: Final = re.compile(r"[A-Za-z0-9_-]{22}")
"""A place and its check, base64url (RFC 4648, section 5) without the padding."""

_INCIDENT_ID: Final = re.compile(r"(0|[1-9][0-9]{0,9})-([1-9][0-9]{0,15})")
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_FLAGS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a listing: behind ``after_id`` in ``shard``."""

    shard: int = 0
    after_id: int = 0


def encode_cursor(cursor: Cursor, listing: str) -> str:
    """The text of a place in the listing of that name. It is opaque to callers, and no secret."""
    place = _PLACE.pack(cursor.shard, cursor.after_id)
    return base64.urlsafe_b64encode(place + _check(place, listing)).rstrip(b"=").decode("ascii")


def decode_cursor(text: str, listing: str, shards: int) -> Cursor:
    """The place that ``text`` names in the listing of that name.

    Raises:
        InvalidRequest: It was not made by ``encode_cursor`` for this listing, or there are no so many shards.
    """
    if _CURSOR.fullmatch(text):
        shard, after_id = _PLACE.unpack_from(base64.urlsafe_b64decode(text + "=="))
        cursor = Cursor(shard, after_id)
        # Made again, it must be the same: that compares the check, and every bit of the text.
        if shard < shards and after_id <= TOKEN_MAX and encode_cursor(cursor, listing) == text:
            return cursor
    raise InvalidRequest("the cursor is not one that this listing gave", field="cursor")


def _check(place: bytes, listing: str) -> bytes:
    return blake2b(place, digest_size=_CHECK_BYTES, person=listing.encode()).digest()


def query_members(pairs: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The filters of a listing, from the decoded pairs of a URL's query to what JSON would have held.

    A value that is no number or flag stays text, an empty one too, for the parser to refuse by name: a caller that
    has nothing to say leaves the filter out, and one whose variable was empty must not be told of everything. Only a
    cursor may be empty: so a loop over pages begins.

    Raises:
        InvalidRequest: A filter is named twice.
    """
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise InvalidRequest("a filter is named twice", field=name)
        members[name] = _query_value(name, value)
    return members


_QUERY_FIELDS: Final[Mapping[str, Field]] = {entry.name: entry for entry in RECORDS}


def _query_value(name: str, value: str) -> object:
    known = _QUERY_FIELDS.get(name)
    if name == "cursor" and not value:
        return None
    if known is None:
        return value
    if known.kind is FLAG:
        return _FLAGS.get(value, value)
    if known.kind.schema["type"] == "integer" and _DECIMAL.fullmatch(value):
        return int(value)
    return value


@dataclass(slots=True)
class Walk:
    """A listing on its way through the shards. Ask ``next_query`` and ``take`` its page until there is none."""

    _name: str
    _query: ListQuery
    _shards: int
    _dialect: Dialect
    _at: Cursor | None
    _found: list[dict[str, object]] = field(default_factory=list)
    _bytes: int = 0
    _full: bool = False

    def next_query(self) -> tuple[int, ListQuery] | None:
        """The shard to ask next, and what; None where the page is full or the shards are through."""
        left = self._query.limit - len(self._found)
        if self._at is None or not left or self._full:
            return None
        query = replace(self._query, after_id=self._at.after_id, limit=left)
        if isinstance(query, ListIncidents):
            query = replace(query, bytes_max=INCIDENTS_BYTES_MAX - self._bytes)
        return self._at.shard, query

    def take(self, page: Page) -> None:
        """Take the answer to the latest ``next_query``."""
        assert self._at is not None
        shard = self._at.shard
        match page:
            case RecordsPage():
                # Operators alone list, so that tokens show; outcomes are for those who ask for one key.
                self._found += [
                    record_body(key, record, operator=True, with_outcome=False, dialect=self._dialect)
                    for _, key, record in page.rows
                ]
            case IncidentsPage():
                self._found += [
                    incident_body(incident_id(shard, number), incident, self._dialect) for number, incident in page.rows
                ]
                self._bytes += page.outcome_bytes
                # A shard that has more told as many as it was asked for, or as much as there was room for.
                self._full = page.next_after is not None or self._bytes >= INCIDENTS_BYTES_MAX
            case _:
                assert_never(page)
        if page.next_after is not None:
            self._at = Cursor(shard, page.next_after)
        else:
            self._at = Cursor(shard + 1) if shard + 1 < self._shards else None

    def body(self) -> dict[str, object]:
        """The members of the page, and of where the next one begins."""
        further = encode_cursor(self._at, self._name) if self._at is not None else None
        return {self._name: self._found, "next": further}


def records_walk(members: Mapping[str, object], scope: Scope, dialect: Dialect, shards: int) -> Walk:
    """A listing of records.

    Args:
        members: The filters: over HTTP those of ``query_members``, over RPC the call's own.
        scope: Who asks, an operator, and where.
        dialect: How the members came and leave.
        shards: How many shards there are.

    Raises:
        InvalidRequest: A filter is unknown or impossible; ``field`` names it.
    """
    values = members_of(_RECORDS[dialect], members)
    state = values.get("state")
    query = ListRecords(
        tenant=scope.tenant,
        namespace=scope.namespace,
        state=state.value if state is not None else None,
        contested=values.get("contested"),
        older_than_ms=values.get("older_than_ms"),
        after_id=0,
        limit=values.get("limit", LIST_LIMIT_DEFAULT),
    )
    return Walk("records", query, shards, dialect, _start(values, "records", shards))


def incidents_walk(members: Mapping[str, object], scope: Scope, dialect: Dialect, shards: int) -> Walk:
    """A listing of incidents; arguments and errors as of ``records_walk``."""
    values = members_of(_INCIDENTS[dialect], members)
    query = ListIncidents(
        tenant=scope.tenant,
        namespace=scope.namespace,
        after_id=0,
        limit=values.get("limit", LIST_LIMIT_DEFAULT),
        as_json=dialect is Dialect.JSON,
    )
    return Walk("incidents", query, shards, dialect, _start(values, "incidents", shards))


def _start(values: Mapping[str, Any], listing: str, shards: int) -> Cursor:
    text = values.get("cursor")
    return decode_cursor(text, listing, shards) if text is not None else Cursor()


def incident_id(shard: int, number: int) -> str:
    """The id of an incident as callers see it: its shard, and its number there."""
    return f"{shard}-{number}"


def parse_incident_id(text: str, shards: int) -> tuple[int, int]:
    """The shard and the number that an incident's id names.

    Raises:
        RequestError: NOT_FOUND: no incident can have it. That is no other answer than for one that is gone.
    """
    match = _INCIDENT_ID.fullmatch(text)
    if match is not None:
        shard, number = int(match[1]), int(match[2])
        if shard < shards:
            return shard, number
    raise RequestError(Code.NOT_FOUND, "there is no such incident", field="id")


def acknowledge_from(
    members: Mapping[str, object], scope: Scope, dialect: Dialect, shards: int
) -> tuple[int, Acknowledge]:
    """The shard to tell that an incident was seen, and what to tell it.

    Args:
        members: ``id``: over HTTP from the path.
        scope: Who asks, an operator, and where.
        dialect: How the members came.
        shards: How many shards there are.

    Raises:
        InvalidRequest: There is no ``id``, or another member.
        RequestError: NOT_FOUND: no incident can have this id.
    """
    values = members_of(_ACKNOWLEDGE[dialect], members)
    shard, number = parse_incident_id(values["id"], shards)
    return shard, Acknowledge(scope.tenant, scope.namespace, number)
