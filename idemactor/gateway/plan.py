"""A source made ready: what it names in a request, parsed once, and checked for what cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from idemactor.core.fingerprint import SOURCE_RULE, VERSION, canonical
from idemactor.core.keys import InvalidNamespace, check_namespace
from idemactor.errors import IdemactorError
from idemactor.gateway.normalise import Normaliser
from idemactor.gateway.patterns import why_not_apart
from idemactor.gateway.refs import InvalidRef, Place, Ref, parse_ref
from idemactor.gateway.words import Format

if TYPE_CHECKING:
    from idemactor.gateway.source import Source

STATUS_MIN: Final = 200
STATUS_MAX: Final = 599

KEY_HEADER: Final = "Idempotency-Key"
KEY_MEMBER: Final = "idempotencyKey"
KEY_HEADER_REF: Final = f"header:{KEY_HEADER}"
KEY_MEMBER_REF: Final = f"/{KEY_MEMBER}"
"""Where senders put keys of their own."""

_RULE_DIGITS: Final = 16
"""Hex digits of the digest that tells one source's rule from another, as for the rules of namespaces."""

_VALUES: Final = frozenset({Place.HEADER, Place.QUERY, Place.MEMBER})
_PLACES: Final[Mapping[str, frozenset[Place]]] = {
    "headers": frozenset({Place.HEADER}),
    "id": _VALUES,
    "derive": _VALUES | {Place.PATH, Place.BODY},
    "mode": _VALUES,
    "nonce": _VALUES,
    "normalise": _VALUES,
    "exclude": frozenset({Place.QUERY, Place.MEMBER}),
    "secrets": _VALUES,
}
"""What each setting may name."""
_WHY_NOT: Final[Mapping[tuple[str, Place], str]] = {
    ("exclude", Place.HEADER): "header fields never count in a fingerprint unless named by headers",
    ("exclude", Place.BODY): "only members and parameters can be left out",
    ("exclude", Place.PATH): "only members and parameters can be left out",
}


class InvalidSource(IdemactorError, ValueError):
    """A source that cannot be; ``setting`` names what is at fault."""

    def __init__(self, setting: str, detail: str) -> None:
        super().__init__(detail)
        self.setting = setting


@dataclass(frozen=True, slots=True)
class Plan:
    """What a source names, parsed.

    Attributes:
        ids: The recipes of its own id, in order of preference.
        derive: What a derived key is made of.
        normalisers: By what they are for.
        mode: What tells test from live.
        nonce: What tells intended twins apart.
        left_out: What does not count in the fingerprint: exclusions and secrets.
        headers: The names of the fields that do, in lower case.
        pattern: What the whole of a text matches.
        rule_id: Names everything that makes up a fingerprint, the same in every process.
    """

    ids: tuple[tuple[Ref, ...], ...]
    derive: tuple[Ref, ...]
    normalisers: Mapping[Ref, tuple[Normaliser, ...]]
    mode: Ref | None
    nonce: Ref | None
    left_out: tuple[Ref, ...]
    headers: tuple[str, ...]
    pattern: re.Pattern[str] | None
    rule_id: str

    @property
    def keyed(self) -> Iterator[Ref]:
        """Everything that makes up keys."""
        return (ref for _, ref in _named(self))


def plan_of(source: Source) -> Plan:
    """``source``, made ready.

    Raises:
        InvalidSource: It cannot be.
    """
    _check_words(source)
    secrets = _refs("secrets", source.secrets)
    plan = Plan(
        ids=tuple(_refs("id", (recipe,) if isinstance(recipe, str) else recipe) for recipe in source.id),
        derive=_refs("derive", source.derive),
        normalisers=dict(zip(_refs("normalise", tuple(source.normalise)), source.normalise.values(), strict=True)),
        mode=_ref("mode", source.mode) if source.mode is not None else None,
        nonce=_ref("nonce", source.nonce) if source.nonce is not None else None,
        left_out=(*_refs("exclude", source.exclude), *secrets),
        headers=tuple(ref.name for ref in _refs("headers", tuple(f"header:{name}" for name in source.headers))),
        pattern=_pattern(source),
        rule_id=_rule_id(source),
    )
    if len(set(plan.ids)) != len(plan.ids):
        raise InvalidSource("id", "it names something twice")
    _check_members(source, plan)
    _check_secrets(source, plan, secrets)
    return plan


def _refs(setting: str, texts: tuple[str, ...]) -> tuple[Ref, ...]:
    refs = tuple(_ref(setting, text) for text in texts)
    if len(set(refs)) != len(refs):
        raise InvalidSource(setting, "it names something twice")
    return refs


def _ref(setting: str, text: str) -> Ref:
    try:
        ref = parse_ref(text)
    except InvalidRef as error:
        raise InvalidSource(setting, f"{text!r}: {error}") from None
    if ref.place not in _PLACES[setting]:
        why = _WHY_NOT.get((setting, ref.place))
        raise InvalidSource(setting, f"{text!r} has no place here" + (f": {why}" if why else ""))
    return ref


def _check_words(source: Source) -> None:
    try:
        check_namespace(source.namespace)
    except InvalidNamespace as error:
        raise InvalidSource("namespace", str(error)) from None
    if source.client_key is False and not source.id and not source.derive:
        raise InvalidSource("id", "there is no way to find a key: name an id, or what to derive it from")
    if any(not recipe for recipe in source.id):
        raise InvalidSource("id", "a tuple names at least one thing")
    for name in ("completed", "in_flight", "in_doubt", "mismatch", "unavailable"):
        if not STATUS_MIN <= getattr(source.answers, name) <= STATUS_MAX:
            raise InvalidSource("answers", f"{name} is a status from {STATUS_MIN} to {STATUS_MAX}")


def _pattern(source: Source) -> re.Pattern[str] | None:
    if source.pattern is None:
        return None
    if source.format is not Format.TEXT:
        raise InvalidSource("pattern", 'only a body of format "text" has a pattern')
    try:
        pattern = re.compile(source.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidSource("pattern", f"it is no regular expression: {error}") from None
    if not pattern.groupindex:
        raise InvalidSource("pattern", "it names no field: (?P<symbol>[A-Z]+) names one")
    return pattern


def _named(plan: Plan) -> Iterator[tuple[str, Ref]]:
    """Everything that is named, with the setting that names it."""
    for recipe in plan.ids:
        yield from (("id", ref) for ref in recipe)
    yield from (("derive", ref) for ref in plan.derive)
    yield from ((name, ref) for name, ref in (("mode", plan.mode), ("nonce", plan.nonce)) if ref is not None)


def _check_members(source: Source, plan: Plan) -> None:
    """Refuse members that a body of this format does not have."""
    named = [
        *_named(plan),
        *(("normalise", ref) for ref in plan.normalisers),
        *(("exclude" if ref.text in source.exclude else "secrets", ref) for ref in plan.left_out),
    ]
    for setting, ref in named:
        if ref.place is not Place.MEMBER:
            continue
        wrong = None
        if source.format is Format.BYTES:
            wrong = 'a body of format "bytes" has no members'
        elif source.format is Format.FORM and len(ref.tokens) != 1:
            wrong = "a form has fields, and none within a field"
        elif source.format is Format.TEXT and (plan.pattern is None or ref.text[1:] not in plan.pattern.groupindex):
            wrong = "there is no pattern with a group of this name"
        if wrong is not None:
            raise InvalidSource(setting, f"{ref.text!r}: {wrong}")


def _check_secrets(source: Source, plan: Plan, secrets: tuple[Ref, ...]) -> None:
    """Nothing that makes up a key may be a secret, lie in one, or hold one."""
    headers = (("headers", Ref(f"header:{name}", Place.HEADER, name)) for name in plan.headers)
    for setting, ref in (*_named(plan), *headers):
        if any(secret.meets(ref) for secret in secrets):
            raise InvalidSource(
                setting, f"{ref.text!r} is a secret, or holds one: it reaches no key and no fingerprint"
            )
    for read, text in ((source.reads_key_header, KEY_HEADER_REF), (source.reads_key_member, KEY_MEMBER_REF)):
        if read and any(secret.meets(parse_ref(text)) for secret in secrets):
            raise InvalidSource("secrets", f"{text!r} is the sender's own key: client_key = false leaves it unread")
    if plan.pattern is not None:
        why = why_not_apart(plan.pattern, {ref.tokens[0] for ref in secrets if ref.place is Place.MEMBER})
        if why is not None:
            raise InvalidSource("pattern", why)


def _rule_id(source: Source) -> str:
    parts: list[object] = [
        VERSION,
        source.format.value,
        source.pattern or "",
        sorted({parse_ref(text).spelling for text in (*source.exclude, *source.secrets)}),
        sorted(name.lower() for name in source.headers),
        {
            parse_ref(text).spelling: [normaliser.value for normaliser in applied]
            for text, applied in source.normalise.items()
        },
    ]
    return f"{SOURCE_RULE}:{source.name}:{sha256(canonical(parts)).hexdigest()[:_RULE_DIGITS]}"
