"""Header fields of intents: what could not be sent is refused, and named."""

from __future__ import annotations

import h11
import pytest

from idemactor.core.intent_headers import check_intent_headers
from idemactor.errors import InvalidRequest
from idemactor.gateway.proxy.headers import encoded


@pytest.mark.parametrize("value", ["", "a", "a b\tc", "ünï €", "x" * 10_000, "\U0001f600", "\xa0"])
def test_what_is_accepted_can_be_sent(value: str) -> None:
    headers = (("X-Own", value), ("Authorization", "Bearer x"), ("Host-Name", "ok"))
    check_intent_headers("text/plain; charset=utf-8", headers)
    pairs = encoded([("Host", "x"), *headers])
    assert h11.Connection(h11.CLIENT).send(h11.Request(method="POST", target="/", headers=pairs))


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb", "\0", " a", "a ", "\t", "a\x7f", "a\x85b", "\ud800"])
def test_a_value_that_no_field_can_have(value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_intent_headers("", (("A", "b"), ("X-Own", value)))
    assert caught.value.field == "intent.headers.1"


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "a\r\nb"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is no name"):
        check_intent_headers("", ((name, "b"),), field="events.3")


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "content-length", "Content_Length", "Content-Type", "Transfer-Encoding", "CONNECTION", "TE"),
        *("Idempotency-Key", "idempotency-attempt", "webhook-id", "Webhook_Signature", "expect", "upgrade"),
    ],
)
def test_what_the_relay_writes_itself(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_intent_headers("", ((name, "b"),), field="events.3")
    assert caught.value.field == "events.3.headers.0"


def test_a_content_type_that_is_no_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_intent_headers("text/plain\r\nX: y", ())
    assert caught.value.field == "intent.content_type"


def test_there_is_a_bound() -> None:
    check_intent_headers("", [("a", "b")] * 64)
    with pytest.raises(InvalidRequest, match="more than 64"):
        check_intent_headers("", [("a", "b")] * 65)
