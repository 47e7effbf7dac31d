"""``[sources.NAME]``: the shipped sources, overridden field by field, and others in the same form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from idemactor.config import kinds
from idemactor.config.kinds import Kind, Lexis
from idemactor.config.section import Section
from idemactor.core import limits
from idemactor.gateway.normalise import Normaliser
from idemactor.gateway.plan import STATUS_MAX, STATUS_MIN
from idemactor.gateway.profiles import SCHEMES, SHIPPED
from idemactor.gateway.refs import InvalidRef, parse_ref
from idemactor.gateway.source import Answers, Bucket, Format, InvalidSource, Recipe, Source, Verify
from idemactor.gateway.verify import TIMELESS, TOLERANCE_MS_DEFAULT, InvalidSecret, Scheme

TOLERANCE_MS_MAX: Final = limits.DAY_MS

_RESERVED: Final = "IDEMACTOR_"
"""What variables that are settings begin with: no secret may, for it would be taken for one."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What a name in the environment is made of (POSIX.1-2017, base definitions, section 8.1, and lower case)."""
_USUAL_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_REFS: Final = '"header:NAME", "query:NAME" or JSON Pointers'
_DURATION: Final = kinds.integer(limits.TTL_MS_MIN, limits.TTL_MS_MAX)


def sources(section: Section, environment: Mapping[str, str]) -> dict[str, Source]:
    """The sources there are: the shipped ones, as far as ``section`` does not say otherwise, and its own."""
    configured = {name: _source(name, below, environment) for name, below in section.named_sections()}
    return {**SHIPPED, **{name: source for name, source in configured.items() if source is not None}}


def _source(name: str, section: Section, environment: Mapping[str, str]) -> Source | None:
    """One source; None where it cannot be, which is reported."""
    given = _fields(section)
    base = SHIPPED.get(name)
    for setting, below in section.sections("answers", "normalise", "verify"):
        if setting == "answers":
            given[setting] = _answers(below, base.answers if base else Answers())
        elif setting == "normalise":
            given[setting] = _normalise(below)
        else:
            given[setting] = _verify(below, SCHEMES.get(name), environment)
    section.close()
    _report_what_has_no_effect(section, given, base)
    try:
        source = replace(base, **given) if base else Source(name, **given)
    except InvalidSource as error:
        section.report(str(error), error.setting)
        return None
    return source


def _report_what_has_no_effect(section: Section, given: Mapping[str, Any], base: Source | None) -> None:
    """Settings that somebody wrote down and that nothing would ever read."""
    bucket = given.get("bucket", base.bucket if base else Bucket.WINDOW)
    if "window_ms" in given and bucket is not Bucket.WINDOW:
        section.report(f'stands beside bucket = "{bucket}": only a "window" has a length', "window_ms")
    # Where derive itself is wrong, that is said.
    if not section.has("derive") and not (base and base.derive):
        for name in ("window_ms", "bucket", "nonce"):
            if name in given:
                section.report("has no effect without derive: it is about derived keys", name)


def _fields(section: Section) -> dict[str, Any]:
    """The plain settings that were given."""
    table: dict[str, Kind[Any]] = {
        "namespace": kinds.name(),
        "format": kinds.choice(Format),
        "pattern": _text(),
        "client_key": kinds.boolean(),
        "id": _recipes(),
        "derive": _derive(),
        "mode": _ref(),
        "bucket": kinds.choice(Bucket),
        "window_ms": _DURATION,
        "nonce": _ref(),
        "exclude": kinds.texts(_REFS, parse_ref),
        "headers": kinds.texts("names of header fields", lambda text: parse_ref(f"header:{text}")),
        "secrets": kinds.texts(_REFS, parse_ref),
        "retry_horizon_ms": kinds.integer(0, limits.TTL_MS_MAX),
        "ttl_ms": _DURATION,
    }
    read = {name: section.read(name, kind, None) for name, kind in table.items()}
    return {name: value for name, value in read.items() if value is not None}


def _answers(section: Section, default: Answers) -> Answers:
    kind = kinds.integer(STATUS_MIN, STATUS_MAX)
    answers = Answers(
        completed=section.read("completed", kind, default.completed),
        in_flight=section.read("in_flight", kind, default.in_flight),
        in_doubt=section.read("in_doubt", kind, default.in_doubt),
        mismatch=section.read("mismatch", kind, default.mismatch),
        unavailable=section.read("unavailable", kind, default.unavailable),
    )
    section.close()
    return answers


def _normalise(section: Section) -> dict[str, tuple[Normaliser, ...]]:
    kind = _normalisers()
    return {name: section.read(name, kind, ()) for name in section.names()}


def _verify(section: Section, scheme: Scheme | None, environment: Mapping[str, str]) -> Verify | None:
    """What signatures are checked with; None where that cannot be, which is reported: nothing starts unverified."""
    kind = kinds.choice(Scheme)
    if scheme is None or section.has("scheme"):
        scheme = section.require("scheme", kind, Scheme.STANDARD_WEBHOOKS)
    variables = section.require("secret_env", secret_variables(), ())
    tolerance_ms = section.read("tolerance_ms", kinds.integer(1, TOLERANCE_MS_MAX), TOLERANCE_MS_DEFAULT)
    section.close()
    if section.has("tolerance_ms") and scheme in TIMELESS:
        section.report(f'stands beside the scheme "{scheme}", which signs no time', "tolerance_ms")
    secrets = [environment.get(variable, "") for variable in variables]
    for variable, secret in zip(variables, secrets, strict=True):
        if not secret:
            section.report(f"the environment variable {shown_variable(variable)} is not set", "secret_env")
    if not secrets or not all(secrets):
        return None
    try:
        return Verify(scheme, variables, tuple(secrets), tolerance_ms)
    except InvalidSecret as error:
        section.report(str(error), "secret_env")
        return None


# --------------------------------------------------------------------------------------------------------------- kinds


def _text() -> Kind[str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value

    return Kind("text", read, Lexis.TEXT)


def _ref() -> Kind[str]:
    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        return _checked(value)

    return Kind('"header:NAME", "query:NAME" or a JSON Pointer', read, Lexis.TEXT)


def _derive() -> Kind[tuple[str, ...]]:
    """A list, or one of them by itself: ``derive = "body"``."""
    many = kinds.texts("", parse_ref)

    def read(value: object) -> tuple[str, ...]:
        return many.read([value] if isinstance(value, str) else value)

    return Kind(f'a list of {_REFS}, "path" and "body", or one of them', read, Lexis.LIST)


def _recipes() -> Kind[tuple[Recipe, ...]]:
    """A list of what may be the id, in order of preference; a list in it is a tuple."""
    many = kinds.texts("", parse_ref)

    def read(value: object) -> tuple[Recipe, ...]:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, (list, tuple)):
            raise ValueError
        return tuple(_checked(item) if isinstance(item, str) else many.read(item) for item in value)

    return Kind(f"a list of {_REFS}, or of lists of them that make one id together", read, Lexis.LIST)


def _normalisers() -> Kind[tuple[Normaliser, ...]]:
    words = ", ".join(kinds.show(word.value) for word in Normaliser)

    def read(value: object) -> tuple[Normaliser, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError
        try:
            return tuple(Normaliser(item) for item in value)
        except ValueError:
            # The enumeration's own message says less than what is allowed.
            raise ValueError from None

    return Kind(f"a list of {words}", read, Lexis.LIST)


def secret_variables() -> Kind[tuple[str, ...]]:
    """Names of environment variables that hold secrets: one, or a list."""

    def check(text: str) -> None:
        if not _NAME.fullmatch(text):
            raise ValueError("one is no name of a variable; the secret itself belongs into that variable")
        if text.upper().startswith(_RESERVED):
            raise ValueError(f"one begins with {_RESERVED}, as settings do")

    def read(value: object) -> tuple[str, ...]:
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, (list, tuple)) or not found or not all(isinstance(one, str) for one in found):
            raise ValueError
        for text in found:
            check(text)
        if len({*found}) < len(found):
            raise ValueError("one is in it twice")
        return tuple(found)

    allowed = "the name of an environment variable, or a list of them while a secret is rotated"
    return Kind(allowed, read, Lexis.LIST, secret=True)


def shown_variable(name: str) -> str:
    """A variable's name for an error line; what does not look like one may be the secret itself, and is not shown."""
    return name if _USUAL_NAME.fullmatch(name) else "that secret_env names (not shown)"


def _checked(text: str) -> str:
    try:
        parse_ref(text)
    except InvalidRef as error:
        raise ValueError(f"{kinds.show(text)}: {error}") from None
    return text
