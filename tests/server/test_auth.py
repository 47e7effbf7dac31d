"""Who may call: tokens, headers, roles, and the order in which refusals come."""

from __future__ import annotations

import hmac

import pytest

from idemactor.errors import Code, RequestError
from idemactor.server.auth import OPERATOR_CALLS, TOKEN_CHARS_MAX, Authenticator, Role
from tests.server.rig import POLICIES, TOKENS, entry


@pytest.fixture
def authenticator() -> Authenticator:
    return Authenticator(TOKENS, POLICIES)


def refusal(authenticator: Authenticator, token: str, namespace: str, op: str) -> Code:
    with pytest.raises(RequestError) as caught:
        authenticator.scope(authenticator.authenticate(token), namespace, op)
    return caught.value.code


def test_without_tokens_everyone_has_every_right() -> None:
    authenticator = Authenticator((), POLICIES)
    for values in ([], ["Bearer whatever"], ["a", "b"]):
        principal = authenticator.from_header(values)
        assert (principal.tenant, principal.namespaces, principal.role) == ("default", None, Role.OPERATOR)
        assert principal.may_read_metrics
    scope = authenticator.scope(authenticator.anonymous, "trade", "forget")
    assert (scope.tenant, scope.namespace, scope.operator) == ("default", "trade", True)
    assert scope.policy is POLICIES["trade"]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["caller-token"],
        ["Bearer"],
        ["Bearer "],
        ["Bearer  "],
        ["Basic caller-token"],
        ["Bearer caller-token extra"],
        ["Bearer caller-token,"],
        ["Bearer caller-toke"],
        ["Bearer caller-tokens"],
        ["Bearer CALLER-TOKEN"],
        ["Bearer \xe9"],
        ["Bearer caller-token", "Bearer caller-token"],
        ["Bearer caller-token", "Bearer operator-token"],
    ],
)
def test_a_header_that_is_no_known_bearer_token(authenticator: Authenticator, values: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        authenticator.from_header(values)
    assert caught.value.code is Code.UNAUTHENTICATED
    assert "token" in caught.value.detail
    assert not any(value and value in caught.value.detail for value in values)


@pytest.mark.parametrize("value", ["Bearer caller-token", "bearer caller-token", "BEARER   caller-token "])
def test_a_header_that_is(authenticator: Authenticator, value: str) -> None:
    principal = authenticator.from_header([value])
    assert (principal.tenant, principal.role) == ("acme", Role.CALLER)


def test_nobody_is_anonymous_where_tokens_are_configured(authenticator: Authenticator) -> None:
    assert authenticator.anonymous is None
    assert authenticator.authenticate("") is None
    assert authenticator.authenticate("\ud800") is None
    assert authenticator.authenticate("x" * (TOKEN_CHARS_MAX + 1)) is None
    with pytest.raises(RequestError) as caught:
        authenticator.scope(None, "Not A Namespace", "reserve")
    assert caught.value.code is Code.UNAUTHENTICATED


def test_every_digest_is_compared_in_constant_time(
    monkeypatch: pytest.MonkeyPatch, authenticator: Authenticator
) -> None:
    compared: list[bytes] = []
    original = hmac.compare_digest

    def counting(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return original(known, given)

    monkeypatch.setattr("idemactor.server.auth.hmac.compare_digest", counting)
    assert authenticator.authenticate("caller-token") is not None
    assert compared == [token.sha256 for token in TOKENS]


@pytest.mark.parametrize(
    ("token", "namespace", "op", "code"),
    [
        # Somebody unknown is told nothing else.
        ("nobody", "Not A Namespace", "reserve", Code.UNAUTHENTICATED),
        ("nobody", "trade", "reserve", Code.UNAUTHENTICATED),
        # What can be no namespace is said before what exists.
        ("trade-token", "Not A Namespace", "reserve", Code.INVALID_REQUEST),
        ("caller-token", "", "reserve", Code.INVALID_REQUEST),
        ("metrics-token", "-", "reserve", Code.INVALID_REQUEST),
        # A namespace that a token may not use gets one answer, whether or not it exists.
        ("trade-token", "default", "reserve", Code.FORBIDDEN),
        ("trade-token", "nowhere", "reserve", Code.FORBIDDEN),
        ("metrics-token", "default", "reserve", Code.FORBIDDEN),
        ("metrics-token", "nowhere", "reserve", Code.FORBIDDEN),
        ("caller-token", "nowhere", "reserve", Code.UNKNOWN_NAMESPACE),
        ("trade-token", "gone", "reserve", Code.UNKNOWN_NAMESPACE),
        ("caller-token", "nowhere", "forget", Code.FORBIDDEN),
        ("operator-token", "nowhere", "forget", Code.UNKNOWN_NAMESPACE),
    ],
)
def test_the_order_of_refusals(authenticator: Authenticator, token: str, namespace: str, op: str, code: Code) -> None:
    assert refusal(authenticator, token, namespace, op) is code


@pytest.mark.parametrize("op", sorted(OPERATOR_CALLS))
def test_operators_alone(authenticator: Authenticator, op: str) -> None:
    assert refusal(authenticator, "caller-token", "default", op) is Code.FORBIDDEN
    assert authenticator.scope(authenticator.authenticate("operator-token"), "default", op).operator


def test_operators_are_callers_and_tenants_are_the_tokens(authenticator: Authenticator) -> None:
    for token, tenant, operator in (
        ("caller-token", "acme", False),
        ("operator-token", "acme", True),
        ("other-token", "other", True),
    ):
        scope = authenticator.scope(authenticator.authenticate(token), "default", "reserve")
        assert (scope.tenant, scope.operator) == (tenant, operator)


def test_who_reads_metrics(authenticator: Authenticator) -> None:
    readers = {
        name: principal.may_read_metrics
        for name in ("caller-token", "operator-token", "metrics-token")
        if (principal := authenticator.authenticate(name))
    }
    assert readers == {"caller-token": False, "operator-token": True, "metrics-token": True}


def test_an_unknown_role_is_an_error() -> None:
    with pytest.raises(ValueError, match="root"):
        Authenticator([entry("x", "acme", "root")], POLICIES)
