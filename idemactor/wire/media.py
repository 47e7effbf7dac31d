"""Media types, as far as they decide how a body is read (RFC 9110, section 8.3)."""

from __future__ import annotations

import re
from typing import Final

_JSON: Final = re.compile(r"application/json|[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+\+json")
"""RFC 8259, section 11, and the structured suffix of RFC 6839, section 3.1, whatever the type it is a suffix of."""

_FORM: Final = "application/x-www-form-urlencoded"


def is_json(value: str) -> bool:
    """Whether the value of a ``Content-Type`` field names JSON, parameters allowed."""
    return _JSON.fullmatch(_type_of(value)) is not None


def is_form(value: str) -> bool:
    """Whether the value of a ``Content-Type`` field names the fields of a form, parameters allowed."""
    return _type_of(value) == _FORM


def _type_of(value: str) -> str:
    return value.partition(";")[0].strip().lower()
