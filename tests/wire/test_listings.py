"""Listings: filters, cursors, and a page that walks through the shards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.limits import INCIDENTS_BYTES_MAX
from idemactor.core.policy import Policy
from idemactor.core.queries import Acknowledge, IncidentsPage, ListIncidents, ListRecords, RecordsPage
from idemactor.core.record import Outcome
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.wire.listings import (
    Cursor,
    Walk,
    acknowledge_from,
    decode_cursor,
    encode_cursor,
    incident_id,
    incidents_walk,
    parse_incident_id,
    query_members,
    records_walk,
)
from idemactor.wire.requests import Dialect, Scope
from tests.wire.samples import INCIDENT, PENDING, PENDING_MEMBERS

SCOPE = Scope("acme", "trade", Policy(), operator=True)
both_dialects = pytest.mark.parametrize("dialect", list(Dialect))


def first_query(walk: Walk) -> object:
    step = walk.next_query()
    assert step is not None
    return step


def refused_field(walk: object, members: dict[str, object], dialect: Dialect) -> str | None:
    assert callable(walk)
    with pytest.raises(InvalidRequest) as caught:
        walk(members, SCOPE, dialect, 4)
    return caught.value.field


# ------------------------------------------------------------------------------------------------------------ filters


@both_dialects
def test_defaults(dialect: Dialect) -> None:
    records = ListRecords("acme", "trade", None, None, None, 0, 100)
    assert first_query(records_walk({}, SCOPE, dialect, 4)) == (0, records)
    incidents = ListIncidents("acme", "trade", 0, 100, as_json=dialect is Dialect.JSON)
    assert first_query(incidents_walk({}, SCOPE, dialect, 4)) == (0, incidents)


@both_dialects
@pytest.mark.parametrize("state", ["pending", "in_doubt", "committed"])
@pytest.mark.parametrize("contested", [True, False])
def test_filters(state: str, contested: bool, dialect: Dialect) -> None:
    members: dict[str, object] = {
        "state": state,
        "contested": contested,
        "older_than_ms": 0,
        "limit": 1000,
        "cursor": encode_cursor(Cursor(3, 2**53 - 1), "records"),
    }
    wanted = ListRecords("acme", "trade", state, contested, 0, 2**53 - 1, 1000)
    step = first_query(records_walk(members, SCOPE, dialect, 4))
    assert step == (3, wanted)
    assert type(wanted.state) is str


def test_filters_of_a_url() -> None:
    pairs = [("state", "pending"), ("contested", "false"), ("older_than_ms", "60000"), ("limit", "1"), ("cursor", "x")]
    assert query_members(pairs) == {
        "state": "pending",
        "contested": False,
        "older_than_ms": 60_000,
        "limit": 1,
        "cursor": "x",
    }
    assert query_members([("cursor", "")]) == {"cursor": None}, "so a loop over pages begins"


@pytest.mark.parametrize(
    "pair",
    [
        ("limit", "0"),
        ("limit", "1001"),
        ("limit", "-1"),
        ("limit", "+1"),
        ("limit", " 1"),
        ("limit", "1.0"),
        ("limit", "1e2"),
        ("limit", "007"),
        ("limit", "1_0"),
        ("limit", "\u0661"),
        ("limit", "9" * 5000),
        ("older_than_ms", "-1"),
        ("older_than_ms", "9007199254740992"),
        ("contested", "True"),
        ("contested", "1"),
        ("contested", "yes"),
        ("state", "lapsed"),
        ("state", "Pending"),
        ("state", "absent"),
        ("cursor", "x"),
        ("cursor", "A" * 22),
        *((name, "") for name in ("state", "contested", "older_than_ms", "limit")),
        ("tenant", "other"),
        ("tenant", ""),
        ("", ""),
    ],
)
def test_bad_filters_of_a_url(pair: tuple[str, str]) -> None:
    assert refused_field(records_walk, query_members([pair]), Dialect.JSON) == pair[0]


def test_a_filter_named_twice() -> None:
    for twice in ([("limit", "1"), ("limit", "1")], [("x", ""), ("x", "")]):
        with pytest.raises(InvalidRequest) as caught:
            query_members(twice)
        assert caught.value.field == twice[0][0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "1"),
        ("limit", True),
        ("limit", 1.0),
        ("limit", 0),
        ("contested", "true"),
        ("contested", 1),
        ("older_than_ms", "0"),
        ("state", 1),
        ("state", "lapsed"),
        ("cursor", 1),
        ("namespace", "trade"),
    ],
)
def test_bad_filters_over_rpc(name: str, value: object) -> None:
    assert refused_field(records_walk, {name: value}, Dialect.MSGPACK) == name


@both_dialects
def test_incidents_have_no_filters_but_paging(dialect: Dialect) -> None:
    for name in ("state", "contested", "older_than_ms"):
        assert refused_field(incidents_walk, {name: None}, dialect) == name


# ------------------------------------------------------------------------------------------------------------ cursors


@given(st.integers(0, 1023), st.integers(0, 2**53 - 1), st.sampled_from(["records", "incidents"]))
def test_cursors_come_back(shard: int, after_id: int, listing: str) -> None:
    cursor = Cursor(shard, after_id)
    text = encode_cursor(cursor, listing)
    assert decode_cursor(text, listing, 1024) == cursor
    other = "incidents" if listing == "records" else "records"
    for bad in (text + "=", text + "A", text[:-1], text.swapcase(), text + "\n"):
        with pytest.raises(InvalidRequest):
            decode_cursor(bad, listing, 1024)
    with pytest.raises(InvalidRequest):
        decode_cursor(text, other, 1024)
    with pytest.raises(InvalidRequest):
        decode_cursor(text, listing, shard)


def test_no_other_text_names_the_same_place() -> None:
    text = encode_cursor(Cursor(1, 5), "records")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    taken = []
    for position in range(len(text)):
        for letter in alphabet:
            changed = text[:position] + letter + text[position + 1 :]
            try:
                decode_cursor(changed, "records", 4)
            except InvalidRequest:
                continue
            taken.append(changed)
    assert set(taken) == {text}


def test_an_impossible_place() -> None:
    with pytest.raises(InvalidRequest):
        decode_cursor(encode_cursor(Cursor(0, 2**53), "records"), "records", 4)


# -------------------------------------------------------------------------------------------------------------- walks


def take_all(walk: Walk, shards: list[list[int]], pages: list[tuple[int, int]]) -> dict[str, object]:
    """Answer a walk from shards that hold records of these ids; ``pages`` notes what was asked."""
    while (step := walk.next_query()) is not None:
        shard, query = step
        pages.append((shard, query.limit))
        found = [number for number in shards[shard] if number > query.after_id][: query.limit]
        rows = tuple((number, f"{shard}/{number}", PENDING) for number in found)
        walk.take(RecordsPage(rows, found[-1] if len(found) == query.limit else None))
    return walk.body()


def listed(body: dict[str, object]) -> list[str]:
    records = body["records"]
    assert isinstance(records, list)
    return [record["key"] for record in records]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
def test_a_listing_walks_through_all_shards(limit: int) -> None:
    shards = [[1, 4, 9], [], [2, 3], [7]]
    members: dict[str, object] = {"limit": limit}
    found: list[str] = []
    while True:
        body = take_all(records_walk(members, SCOPE, Dialect.MSGPACK, 4), shards, [])
        assert len(listed(body)) <= limit
        found += listed(body)
        if body["next"] is None:
            break
        members = {"limit": limit, "cursor": body["next"]}
    assert found == ["0/1", "0/4", "0/9", "2/2", "2/3", "3/7"]


def test_a_page_asks_only_for_what_it_lacks() -> None:
    asked: list[tuple[int, int]] = []
    body = take_all(records_walk({"limit": 5}, SCOPE, Dialect.MSGPACK, 4), [[1, 2], [3], [4, 5, 6], [7]], asked)
    assert asked == [(0, 5), (1, 3), (2, 2)]
    assert len(listed(body)) == 5
    assert body["next"] is not None


def test_a_page_whose_rows_time_has_ended_goes_on_where_it_stopped() -> None:
    walk = records_walk({"limit": 2}, SCOPE, Dialect.MSGPACK, 1)
    walk.take(RecordsPage((), 9))
    step = walk.next_query()
    assert step is not None
    assert step[0] == 0
    assert (step[1].after_id, step[1].limit) == (9, 2)


def test_a_cursor_stays_good_while_the_list_changes() -> None:
    first = take_all(records_walk({"limit": 2}, SCOPE, Dialect.MSGPACK, 2), [[1, 2, 3], [4]], [])
    rest = records_walk({"cursor": first["next"]}, SCOPE, Dialect.MSGPACK, 2)
    assert listed(take_all(rest, [[1, 3, 8], []], [])) == ["0/3", "0/8"]


def test_records_are_listed_with_tokens_and_without_outcomes() -> None:
    walk = records_walk({}, SCOPE, Dialect.JSON, 1)
    walk.take(RecordsPage(((1, "k", replace(PENDING)),), None))
    shown = {name: value for name, value in PENDING_MEMBERS.items() if name != "outcome"} | {"token": 7}
    assert walk.body() == {"records": [shown], "next": None}


def test_incidents_are_listed_with_the_ids_that_acknowledge_takes() -> None:
    walk = incidents_walk({}, SCOPE, Dialect.MSGPACK, 2)
    walk.take(IncidentsPage(((3, INCIDENT),), None))
    walk.take(IncidentsPage(((3, INCIDENT),), None))
    assert walk.next_query() is None
    found = walk.body()["incidents"]
    assert isinstance(found, list)
    assert [incident["id"] for incident in found] == ["0-3", "1-3"]
    assert found[0]["outcome"]["body"] == b"late"


# ------------------------------------------------------------------------------------------------------- acknowledging


@given(st.integers(0, 1023), st.integers(1, 2**53 - 1))
def test_incident_ids_come_back(shard: int, number: int) -> None:
    assert parse_incident_id(incident_id(shard, number), 1024) == (shard, number)


@pytest.mark.parametrize(
    "text", ["", "1", "-1", "1-", "4-1", "0-0", "00-1", "0-01", "0-1 ", "0-1\n", "a-1", "0-\u0661"]
)
def test_no_incident_has_such_an_id(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_incident_id(text, 4)
    assert caught.value.code is Code.NOT_FOUND


@both_dialects
def test_acknowledging(dialect: Dialect) -> None:
    assert acknowledge_from({"id": "2-9"}, SCOPE, dialect, 4) == (2, Acknowledge("acme", "trade", 9))
    members: list[tuple[dict[str, object], str]] = [
        ({}, "id"),
        ({"id": None}, "id"),
        ({"id": 9}, "id"),
        ({"id": "0-1", "key": "k"}, "key"),
    ]
    for bad, field in members:
        with pytest.raises(InvalidRequest) as caught:
            acknowledge_from(bad, SCOPE, dialect, 4)
        assert caught.value.field == field


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_page_of_incidents_ends_where_their_outcomes_are_enough(dialect: Dialect) -> None:
    def page(number: int, size: int, next_after: int | None) -> IncidentsPage:
        return IncidentsPage(((number, replace(INCIDENT, outcome=Outcome(200, (), bytes(size)))),), next_after, size)

    def asked(after_id: int, limit: int, bytes_max: int) -> ListIncidents:
        return ListIncidents("acme", "trade", after_id, limit, bytes_max, as_json=dialect is Dialect.JSON)

    # What one shard told is no longer there for the next one.
    walk = incidents_walk({}, SCOPE, dialect, 3)
    assert walk.next_query() == (0, asked(0, 100, INCIDENTS_BYTES_MAX))
    walk.take(page(3, 1_000, None))
    assert walk.next_query() == (1, asked(0, 99, INCIDENTS_BYTES_MAX - 1_000))
    walk.take(page(4, 2_000, 4))
    assert walk.next_query() is None
    cursor = walk.body()["next"]
    further = (1, asked(4, 100, INCIDENTS_BYTES_MAX))
    assert first_query(incidents_walk({"cursor": cursor}, SCOPE, dialect, 3)) == further
    # Nor is another one asked where there is no room at all.
    walk = incidents_walk({}, SCOPE, dialect, 3)
    walk.take(page(3, INCIDENTS_BYTES_MAX, None))
    assert walk.next_query() is None
    assert walk.body()["next"] is not None
