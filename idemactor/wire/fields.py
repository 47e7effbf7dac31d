"""What the members of each call may hold: one table for the parser and the OpenAPI document (contract, 5, 8 and 12)."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from idemactor.core import limits
from idemactor.core.commands import Verdict
from idemactor.core.fingerprint import CALLER_RULE, Fingerprint
from idemactor.core.keys import InvalidKey, check_key
from idemactor.core.policy import OnDuplicate
from idemactor.errors import InvalidRequest
from idemactor.wire.rpc_message import bytes_of, text_of
from idemactor.wire.strict_json import InvalidJSON, parse


class RecordState(enum.StrEnum):
    """Where a record stands, as callers see it; a lease that ran out counts as in doubt."""

    PENDING = "pending"
    IN_DOUBT = "in_doubt"
    COMMITTED = "committed"


class Dialect(enum.Enum):
    """How values came and how they leave: JSON has text alone, MessagePack has bytes too."""

    JSON = "json"
    MSGPACK = "msgpack"


Reader: TypeAlias = Callable[[object], Any]
"""Takes what a member holds, never null, and gives what the command holds, or raises ``InvalidRequest``."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a member may hold.

    Attributes:
        schema: The same in JSON Schema (draft 2020-12), as far as that can say it.
        reader: Makes the reader of a member of this name in a dialect.
    """

    schema: Mapping[str, object]
    reader: Callable[[str, Dialect], Reader]


@dataclass(frozen=True, slots=True)
class Field:
    """A member of a call.

    Attributes:
        name: As callers write it; a command's attribute has the same name.
        kind: What it may hold. Null is as if an optional member were absent.
        about: For the documentation.
        required: Whether the call is refused without it.
        rpc_only: Whether HTTP does not know it.
    """

    name: str
    kind: Kind
    about: str
    required: bool = False
    rpc_only: bool = False


def text_reader(dialect: Dialect) -> Callable[[object], str | None]:
    """Gives the text that a value is, or None: over RPC it may come as ``bin`` too (contract, 6)."""
    return text_of if dialect is Dialect.MSGPACK else _json_text


def _json_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def integer(low: int, high: int) -> Kind:
    """An integer from ``low`` to ``high``. ``1.0``, ``1e3``, true and text are none (contract, 12)."""

    def reader(name: str, _dialect: Dialect) -> Reader:
        def read(value: object) -> int:
            if type(value) is int and low <= value <= high:
                return value
            raise InvalidRequest(f"{name} is an integer from {low} to {high}", field=name)

        return read

    return Kind({"type": "integer", "minimum": low, "maximum": high}, reader)


CURSOR_CHARS_MAX: Final = 64
"""Cursors are made here and far shorter; what is longer is none."""
INCIDENT_ID_CHARS_MAX: Final = 64
OPERATION_ID_CHARS: Final = 36
ENTRY_ID_CHARS_MAX: Final = 64
"""An operation's id; an event's has a dot and a number behind it."""

_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""C0, DEL, C1 and lone surrogates."""
_FORBIDDEN_IN_LINES: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""As above, but tabs and the ends of lines pass."""


def is_clean(text: str) -> bool:
    """Whether ``text`` holds neither a control character nor a lone surrogate."""
    # Printable ASCII, the usual text, needs no search.
    return (text.isascii() and text.isprintable()) or _FORBIDDEN.search(text) is None


def text(chars_max: int, *, chars_min: int = 0, lines: bool = False) -> Kind:
    """Text without control characters, its length in code points; ``lines``: tabs and ends of lines may be there."""
    forbidden = _FORBIDDEN_IN_LINES if lines else _FORBIDDEN

    def reader(name: str, dialect: Dialect) -> Reader:
        text_in = text_reader(dialect)

        def read(value: object) -> str:
            found = text_in(value)
            if (
                found is not None
                and chars_min <= len(found) <= chars_max
                and ((found.isascii() and found.isprintable()) or forbidden.search(found) is None)
            ):
                return found
            wanted = f"text of {chars_min} to {chars_max} characters without control characters"
            raise InvalidRequest(f"{name} is {wanted}", field=name)

        return read

    allowed = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$" if lines else r"^[^\x00-\x1f\x7f-\x9f]*$"
    return Kind({"type": "string", "minLength": chars_min, "maxLength": chars_max, "pattern": allowed}, reader)


def choice(options: type[enum.StrEnum]) -> Kind:
    """One of the words of ``options``, spelt exactly."""
    words = {option.value: option for option in options}

    def reader(name: str, dialect: Dialect) -> Reader:
        text_in = text_reader(dialect)

        def read(value: object) -> enum.StrEnum:
            found = text_in(value)
            option = words.get(found) if found is not None else None
            if option is None:
                raise InvalidRequest(f"{name} is one of {', '.join(words)}", field=name)
            return option

        return read

    return Kind({"type": "string", "enum": list(words)}, reader)


def _flag_reader(name: str, _dialect: Dialect) -> Reader:
    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise InvalidRequest(f"{name} is true or false", field=name)

    return read


def _is_short_word(text: str) -> bool:
    return 0 < len(text) <= limits.KEY_CHARS_MAX and not text.isspace()


def _key_reader(name: str, dialect: Dialect) -> Reader:
    text_in = text_reader(dialect)

    def read(value: object) -> str:
        # What is neither printable ASCII nor short may be a key all the same.
        if type(value) is str and value.isascii() and value.isprintable() and _is_short_word(value):
            return value
        key = text_in(value)
        if key is None:
            raise InvalidRequest("a key is text", field=name)
        try:
            check_key(key)
        except InvalidKey as error:
            raise InvalidRequest(str(error), field=name) from None
        return key

    return read


_FINGERPRINT_TEXT: Final = text(limits.FINGERPRINT_CHARS_MAX, chars_min=1)


def _fingerprint_reader(name: str, dialect: Dialect) -> Reader:
    read_text = _FINGERPRINT_TEXT.reader(name, dialect)
    return lambda value: Fingerprint(read_text(value), CALLER_RULE)


def _payload_reader(_name: str, _dialect: Dialect) -> Reader:
    # What it means is the matter of the namespace's rule, which the call brings (``requests.py``).
    return lambda value: value


def _payload_json_reader(name: str, _dialect: Dialect) -> Reader:
    def read(value: object) -> object:
        data = bytes_of(value)
        if data is None:
            raise InvalidRequest(f"{name} is text", field=name)
        try:
            return parse(data)
        except InvalidJSON as error:
            raise InvalidRequest(f"{name}: {error}", field=name) from None

    return read


FLAG: Final = Kind({"type": "boolean"}, _flag_reader)
KEY: Final = Kind(
    {"type": "string", "minLength": 1, "maxLength": limits.KEY_CHARS_MAX, "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"},
    _key_reader,
)
FINGERPRINT: Final = Kind(_FINGERPRINT_TEXT.schema, _fingerprint_reader)
PAYLOAD: Final = Kind({}, _payload_reader)
PAYLOAD_JSON: Final = Kind({"type": "string"}, _payload_json_reader)
SOURCE: Final = text(limits.NAME_CHARS_MAX, chars_min=1)
TOKEN: Final = integer(1, limits.TOKEN_MAX)
LEASE_MS: Final = integer(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)
TTL_MS: Final = integer(limits.TTL_MS_MIN, limits.TTL_MS_MAX)
WAIT_MS: Final = integer(0, limits.WAIT_MS_MAX)
REQUEST_ID: Final = text(limits.REQUEST_ID_CHARS_MAX, chars_min=1)
"""Not empty: callers that all sent an empty one would be taken for one caller, and all be told to go on."""
HOLDER: Final = text(limits.HOLDER_CHARS_MAX)
REASON: Final = text(limits.REASON_CHARS_MAX, lines=True)
ON_DUPLICATE: Final = choice(OnDuplicate)
VERDICT: Final = choice(Verdict)
STATE: Final = choice(RecordState)
AGE_MS: Final = integer(0, limits.TOKEN_MAX)
"""As many milliseconds as every JSON reader holds exactly."""
TIME: Final = integer(0, limits.TOKEN_MAX)
EXPIRES_IN_MS: Final = integer(1, limits.HORIZON_MS_MAX)
DELAY_MS: Final = integer(0, limits.DAY_MS)
POLL_DEFAULT: Final = 10
POLL_MAX: Final = integer(1, limits.POLL_MAX)
OPERATION_ID: Final = text(OPERATION_ID_CHARS, chars_min=1)
ENTRY_ID: Final = text(ENTRY_ID_CHARS_MAX, chars_min=1)
LIST_LIMIT: Final = integer(1, limits.LIST_LIMIT_MAX)
CURSOR: Final = text(CURSOR_CHARS_MAX, chars_min=1)
INCIDENT_ID: Final = text(INCIDENT_ID_CHARS_MAX)
