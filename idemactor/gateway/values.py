"""What stands in a request at the names that a source gives, and what of it counts."""

from __future__ import annotations

from collections.abc import Callable

from idemactor.core.pointers import ABSENT
from idemactor.errors import InvalidRequest
from idemactor.gateway.bodies import Spread, counted, fields_of, read_body, value_of
from idemactor.gateway.normalise import NotNormal, is_missing, normalised
from idemactor.gateway.refs import Place, Ref
from idemactor.gateway.request import RawRequest
from idemactor.gateway.source import Source


class Values:
    """One request, read once.

    Attributes:
        path: Without the query.
        body: As the source's format has it.

    Raises:
        InvalidRequest: On construction: the body is not of that format, or the query has too many parameters.
    """

    def __init__(self, source: Source, request: RawRequest) -> None:
        self._plan = source.plan
        self._request = request
        self.path, _, self._raw_query = request.path.partition("?")
        self._query = fields_of(self._raw_query.encode("utf-8", "surrogatepass"), "path")
        self.body = read_body(source.format, source.plan, request)

    def value(self, ref: Ref, *, optional: bool = False) -> object:
        """What stands there, normalised; ``ABSENT`` where that is nothing.

        Args:
            ref: What is asked for.
            optional: Whether it may be there in some operations of an array and not in others.

        Raises:
            InvalidRequest: It is there more than once, malformed, or missing in one operation of several.
        """
        value = self._found(ref)
        if not isinstance(value, Spread):
            return self._normal(value, ref)
        values = tuple(self._normal(one, ref) for one in value.values)
        missing = [one is ABSENT for one in values]
        if all(missing):
            return ABSENT
        if any(missing) and not optional:
            detail = f"{ref.text} is missing in operation {missing.index(True)} of the body"
            raise InvalidRequest(detail, field=ref.text)
        return Spread(values)

    def _found(self, ref: Ref) -> object:
        match ref.place:
            case Place.HEADER:
                values = self._request.header(ref.name)
                if len(values) > 1:
                    raise InvalidRequest(f"{ref.text} is there more than once", field=ref.text)
                return values[0] if values else ABSENT
            case Place.QUERY:
                return value_of(self._query, ref.name, ref.text)
            case Place.MEMBER:
                return self.body.member(ref.tokens)
            case Place.PATH:
                return self.path
            case Place.BODY:
                raise AssertionError("the body as a whole is no value")

    def _normal(self, value: object, ref: Ref) -> object:
        if value is ABSENT or is_missing(value):
            return ABSENT
        try:
            value = normalised(value, self._plan.normalisers.get(ref, ()))
        except NotNormal as error:
            raise InvalidRequest(f"{ref.text}: {error}", field=ref.text) from None
        return ABSENT if is_missing(value) else value

    def counted_query(self) -> object:
        """What counts of the query: all of it as sent, but for parameters that are left out or normalised."""
        left_out = [ref.name for ref in self._plan.left_out if ref.place is Place.QUERY]
        changes = {ref.name: self._change(ref) for ref in self._plan.normalisers if ref.place is Place.QUERY}
        return counted(self._query, left_out, changes) if left_out or changes else self._raw_query

    def counted_body(self) -> object:
        """What counts of the body."""
        left_out = [ref.tokens for ref in self._plan.left_out if ref.place is Place.MEMBER]
        changes = {ref.tokens: self._change(ref) for ref in self._plan.normalisers if ref.place is Place.MEMBER}
        return self.body.content(left_out, changes)

    def _change(self, ref: Ref) -> Callable[[object], object]:
        """What counts instead of a value: two spellings that make one key are no mismatch either."""

        def change(value: object) -> object:
            try:
                return normalised(value, self._plan.normalisers[ref])
            except NotNormal:
                # Only a key needs it in shape; here it is what it is.
                return value

        return change
