"""No request passes as one method and is carried out as another, protected one."""

from __future__ import annotations

import pytest

from idemactor.errors import InvalidRequest
from idemactor.gateway.proxy.methods import check_method
from idemactor.gateway.proxy.routes import METHODS


@pytest.mark.parametrize("method", ["post", "Post", "pOSt", "patch"])
def test_a_protected_method_in_another_case_is_refused(method: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_method(method, (), METHODS)
    assert caught.value.field == "method"


@pytest.mark.parametrize(
    "pair",
    [
        ("X-HTTP-Method-Override", "POST"),
        ("x-http-method", "patch"),
        ("X-Method-Override", "Post"),
        ("X_HTTP_Method_Override", "POST"),
        ("X-HTTP-Method-Override", "GET, POST"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "M-SEARCH"])
def test_no_other_method_becomes_a_protected_one(method: str, pair: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_method(method, (("Accept", "POST"), pair), METHODS)
    assert caught.value.field == f"header:{pair[0]}"


def test_what_passes() -> None:
    check_method("get", (), METHODS)
    check_method("POST", (("X-HTTP-Method-Override", "PATCH"),), METHODS)
    check_method("GET", (("X-HTTP-Method-Override", "DELETE"), ("X-Method", "POST")), METHODS)
    check_method("post", (), frozenset())
