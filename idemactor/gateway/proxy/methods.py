"""Whether the method of a request is the one that its upstream will carry out. Pure.

Methods are compared with case (RFC 9110, section 9.1), and there are frameworks that do it without, or that take the
method from a header field. What they would carry out as a protected method must not pass as another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from idemactor.core.field_names import plain_name
from idemactor.errors import InvalidRequest

OVERRIDES: Final = frozenset({"x-http-method-override", "x-http-method", "x-method-override"})
"""Fields by which a client names another method than the one in its request line."""


def check_method(method: str, headers: Iterable[tuple[str, str]], protected: frozenset[str]) -> None:
    """Refuse a request that passes by ``protected`` here and may be one of them to its upstream.

    Raises:
        InvalidRequest: The method is a protected one in another case, or is overridden by a protected one.
    """
    if method in protected:
        return
    if method.upper() in protected:
        raise InvalidRequest("methods are written in capitals", field="method")
    for name, value in headers:
        named = {part.strip().upper() for part in value.split(",")}
        if plain_name(name) in OVERRIDES and not named.isdisjoint(protected):
            raise InvalidRequest("no other method becomes one that needs a key", field=f"header:{name}")
