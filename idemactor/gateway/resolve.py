"""From a raw request to a key: the order in which a source's rules are tried (contract, 9 and 12).

1. The sender's own key: the ``Idempotency-Key`` header and the body's ``idempotencyKey``; different ones are refused.
2. The source's own id, by its recipes in order of preference.
3. A key derived from what the request says. All of it is required.

What is there but malformed is an error, and so is a tuple of which a part is missing; the next rule is tried only where
nothing at all is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final

from idemactor.core.fingerprint import VERSION, Fingerprint, InvalidPayload, Number, canonical, canonical_number
from idemactor.core.keys import check_key
from idemactor.core.limits import KEY_CHARS_MAX, NESTING_MAX
from idemactor.core.pointers import ABSENT
from idemactor.errors import InvalidRequest, Unauthorized
from idemactor.gateway.bodies import BODY_FIELD, Spread
from idemactor.gateway.normalise import is_nothing
from idemactor.gateway.plan import KEY_HEADER, KEY_HEADER_REF, KEY_MEMBER, KEY_MEMBER_REF
from idemactor.gateway.refs import Place, Ref
from idemactor.gateway.request import RawRequest
from idemactor.gateway.source import Bucket, Source
from idemactor.gateway.values import Values
from idemactor.gateway.verify import check_signature
from idemactor.wire.fields import is_clean
from idemactor.wire.idempotency_key import InvalidKey, parse_key_header
from idemactor.wire.sourced import Resolved, Resolver, Rule

__all__ = ["NoKey", "Resolved", "Rule", "Unauthorized", "resolve", "resolver_of"]

DERIVATION: Final = "d1"
"""Names how keys are derived. Another way gets another name, or old keys would be taken for other operations."""

MINUTE_MS: Final = 60_000

_DEPTH_MAX: Final = NESTING_MAX + 8
"""A body may be as deep as any payload; around it are the levels of what stands beside it."""
_LIVE, _TEST = "live", "test"
_MODES: Final[Mapping[object, str]] = {
    True: _TEST,
    **dict.fromkeys((_TEST, "true", "1"), _TEST),
    False: _LIVE,
    **dict.fromkeys((_LIVE, "false", "0"), _LIVE),
}


class NoKey(InvalidRequest):
    """Nothing in the request names an operation: no part of an id is there, and the source derives none."""


def _nobody(_source: str) -> None:
    """Is told nothing."""


def resolve(source: Source, request: RawRequest, *, now_ms: int, forged: Callable[[str], None] = _nobody) -> Resolved:
    """The key of ``request`` and what it stands for.

    Args:
        source: Whose request it is.
        request: As it came.
        now_ms: The time, milliseconds since the epoch: for timestamps of signatures and for minutes.
        forged: Is told the source of a request that is not its sender's.

    Raises:
        InvalidRequest: What is required is missing or malformed; ``field`` names it as the source does.
        NoKey: Where nothing at all is there; an ``InvalidRequest``, too.
        Unauthorized: The sender has not proved who it is.
    """
    if source.verify is not None:
        try:
            check_signature(source.verify, request, now_ms=now_ms)
        except Unauthorized:
            forged(source.name)
            raise
    return _Resolving(source, request, now_ms).resolved()


def resolver_of(
    sources: Mapping[str, Source], now_ms: Callable[[], int], forged: Callable[[str], None] = _nobody
) -> Resolver:
    """Finds keys by the names of ``sources``, at the time that ``now_ms`` tells; ``forged`` as in ``resolve``."""

    def find(name: str, request: RawRequest) -> Resolved:
        source = sources.get(name)
        if source is None:
            raise InvalidRequest("there is no such source", field="source")
        return resolve(source, request, now_ms=now_ms(), forged=forged)

    return find


class _Resolving:
    """One request on its way to a key."""

    def __init__(self, source: Source, request: RawRequest, now_ms: int) -> None:
        self._source = source
        self._plan = source.plan
        self._request = request
        self._now_ms = now_ms
        self._values = Values(source, request)

    def resolved(self) -> Resolved:
        """The key by the first rule that finds one."""
        mode = self._mode()
        for rule, find in self._rules():
            found = find()
            if found is not None:
                # A derived key has its mode in it; of any other, the one of test mode is made another.
                key = found if mode == _LIVE or rule is Rule.DERIVED else self._digest([mode, found])
                windowed = rule is Rule.DERIVED and self._source.bucket is Bucket.WINDOW
                return Resolved(
                    key=key,
                    fingerprint=self._fingerprint(),
                    rule=rule,
                    source=self._source.name,
                    namespace=self._source.namespace,
                    window_ms=self._source.window_ms if windowed else None,
                    ttl_ms=None if windowed else self._source.ttl_ms,
                    retry_horizon_ms=self._source.retry_horizon_ms,
                )
        raise self._no_key()

    def _rules(self) -> Sequence[tuple[Rule, Callable[[], str | None]]]:
        return (
            (Rule.HEADER, self._header_key),
            (Rule.BODY, self._body_key),
            (Rule.SOURCE, self._own_id),
            (Rule.DERIVED, self._derived),
        )

    def _no_key(self) -> NoKey:
        if self._plan.ids:
            wanted = self._plan.ids[0][0].text
            return NoKey(f"{wanted} is missing: it names the operation", field=wanted)
        if not self._source.reads_key_header:
            return NoKey(f"the body of the request has no {KEY_MEMBER}", field=KEY_MEMBER_REF)
        return NoKey(f"the request has no {KEY_HEADER}", field=KEY_HEADER_REF)

    # ------------------------------------------------------------------------------------------------ the sender's key

    def _header_key(self) -> str | None:
        values = self._request.header(KEY_HEADER) if self._source.reads_key_header else []
        if not values:
            return None
        try:
            key = parse_key_header([value.encode("utf-8", "surrogatepass") for value in values])
        except InvalidKey as error:
            raise InvalidRequest(str(error), field=KEY_HEADER_REF) from None
        said = self._body_key()
        if said is not None and said != key:
            detail = f"the {KEY_MEMBER} of the body is not the key of the {KEY_HEADER} header"
            raise InvalidRequest(detail, field=KEY_MEMBER_REF)
        return _checked(key, KEY_HEADER_REF)

    def _body_key(self) -> str | None:
        if not self._source.reads_key_member:
            return None
        found = self._values.body.member((KEY_MEMBER,))
        values = found.values if isinstance(found, Spread) else (found,)
        value = values[0]
        if all(one is ABSENT or one is None for one in values):
            return None
        if not all(isinstance(one, str) and one == value for one in values):
            detail = "the operations of one delivery have one key" if len(values) > 1 else "a key is text"
            raise InvalidRequest(detail, field=KEY_MEMBER_REF)
        return _checked(str(value), KEY_MEMBER_REF)

    # ------------------------------------------------------------------------------------------------------- its own id

    def _own_id(self) -> str | None:
        for recipe in self._plan.ids:
            values = [self._values.value(ref) for ref in recipe]
            there = [value is not ABSENT for value in values]
            if all(there):
                return self._id_of(recipe, values)
            if any(there):
                missing = recipe[there.index(False)].text
                raise InvalidRequest(f"{missing} is missing: it is a part of the operation's id", field=missing)
        return None

    def _id_of(self, recipe: Sequence[Ref], values: list[object]) -> str:
        if len(values) > 1 or isinstance(values[0], Spread):
            named = [(ref.text, _plain(_clean(value, ref.text))) for ref, value in zip(recipe, values, strict=True)]
            return self._digest(["id", [ref.spelling for ref in recipe]], named)
        [value], [ref] = values, recipe
        if isinstance(value, (int, float, Number)) and not isinstance(value, bool):
            value = _written_out(value, ref.text)
        if not isinstance(value, str):
            raise InvalidRequest(f"{ref.text} is no id: one is text or a number", field=ref.text)
        return _checked(value, ref.text)

    # --------------------------------------------------------------------------------------------------------- derived

    def _derived(self) -> str | None:
        if not self._plan.derive:
            return None
        named = [(ref.text, self._part(ref)) for ref in self._plan.derive]
        nonce = self._values.value(self._plan.nonce, optional=True) if self._plan.nonce is not None else ABSENT
        minute = self._now_ms // MINUTE_MS if self._source.bucket is Bucket.MINUTE else None
        twin = (self._source.nonce or "", None if nonce is ABSENT else [_plain(nonce)])
        spellings = [ref.spelling for ref in self._plan.derive]
        return self._digest(["derived", self._mode(), minute, spellings], [twin, *named])

    def _part(self, ref: Ref) -> object:
        if ref.place is Place.BODY:
            content = self._values.counted_body()
            if is_nothing(content):
                raise InvalidRequest("nothing in the body counts, and the key is made of it", field=BODY_FIELD)
            return [content]
        value = self._values.value(ref)
        if value is ABSENT:
            raise InvalidRequest(f"{ref.text} is missing: the key is made of it", field=ref.text)
        return _plain(value)

    def _mode(self) -> str:
        """Live or test: an array of operations is one delivery, and cannot be both."""
        if self._plan.mode is None:
            return _LIVE
        value = self._values.value(self._plan.mode, optional=True)
        said = value.values if isinstance(value, Spread) else (value,)
        modes = {self._mode_of(one) for one in said}
        if len(modes) > 1:
            raise InvalidRequest("the operations of one delivery are live and test", field=self._plan.mode.text)
        return modes.pop()

    def _mode_of(self, value: object) -> str:
        if value is ABSENT or value is None:
            return _LIVE
        # One equals True, and is no truth value.
        mode = _MODES.get(value) if isinstance(value, (bool, str)) else None
        if mode is None:
            assert self._plan.mode is not None
            raise InvalidRequest(f"{self._plan.mode.text} is true or false", field=self._plan.mode.text)
        return mode

    def _fingerprint(self) -> Fingerprint:
        named: list[tuple[str, object]] = [
            ("method", self._request.method),
            ("path", self._values.path),
            ("path", self._values.counted_query()),
            *((f"header:{name}", list(self._request.header(name))) for name in self._plan.headers),
            (BODY_FIELD, self._values.counted_body()),
        ]
        return Fingerprint(f"{VERSION}:{_sha256(['request', list(self._plan.headers)], named)}", self._plan.rule_id)

    def _digest(self, parts: list[object], named: Sequence[tuple[str, object]] = ()) -> str:
        return f"{DERIVATION}:{_sha256([self._source.name, *parts], named)}"


def _sha256(parts: list[object], named: Sequence[tuple[str, object]]) -> str:
    """The digest of a tuple in which everything is preceded by its length.

    Args:
        parts: What is our own.
        named: What comes from the request, with the field to blame for it.
    """
    try:
        return sha256(canonical([*parts, [part for _, part in named]], max_depth=_DEPTH_MAX)).hexdigest()
    except InvalidPayload as error:
        blamed = next((field for field, part in named if not _has_meaning(part)), BODY_FIELD)
        raise InvalidRequest(f"{blamed}: {error}", field=blamed) from None


def _has_meaning(part: object) -> bool:
    try:
        canonical(part, max_depth=_DEPTH_MAX)
    except InvalidPayload:
        return False
    return True


def _plain(value: object) -> object:
    """A value as ``canonical`` takes it."""
    if isinstance(value, Spread):
        return {"each": [None if one is ABSENT else one for one in value.values]}
    return [value]


def _clean(value: object, blamed: str) -> object:
    """A part of an id, which holds no character that an id of one part would be refused for."""
    for text in value.values if isinstance(value, Spread) else (value,):
        if isinstance(text, str) and not is_clean(text):
            raise InvalidRequest(f"{blamed}: an id holds no control character and no lone surrogate", field=blamed)
    return value


def _checked(key: str, blamed: str) -> str:
    # Made keys have this name: a sender that could say one would know the key of another mode, or of another request.
    if key.startswith(f"{DERIVATION}:"):
        raise InvalidRequest(f"{blamed}: keys that begin with {DERIVATION}: are made here", field=blamed)
    try:
        check_key(key)
    except InvalidKey as error:
        raise InvalidRequest(f"{blamed}: {error}", field=blamed) from None
    return key


def _written_out(number: int | float | Number, blamed: str) -> str:
    """A number as an id: its digits, and a point where it is no integer. ``5``, ``5.0`` and ``50e-1`` are one id."""
    try:
        text = canonical_number(number.text if isinstance(number, Number) else str(number))
    except InvalidPayload as error:
        raise InvalidRequest(f"{blamed}: {error}", field=blamed) from None
    digits, _, exponent = text.partition("e")
    power = int(exponent or 0)
    if abs(power) > KEY_CHARS_MAX:
        # Never expanded: it would be too long for a key.
        raise InvalidRequest(f"{blamed}: written out it is longer than {KEY_CHARS_MAX} characters", field=blamed)
    if power >= 0:
        return digits + "0" * power
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    digits = digits.rjust(1 - power, "0")
    return f"{sign}{digits[:power]}.{digits[power:]}"
