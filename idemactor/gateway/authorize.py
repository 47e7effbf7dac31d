"""What a gateway that can only ask says of a request: pure reading of its question (``server/http_authorize.py``).

Gateways disagree on how they pass on the request that they ask about:

==================  =================================================  =============================================
gateway             where the method and the path are                  the body
==================  =================================================  =============================================
nginx auth_request  ``X-Original-Method``, ``X-Original-URI``, which   never
                    its configuration sets
Traefik, Caddy      ``X-Forwarded-Method``, ``X-Forwarded-Uri``        Traefik, with ``forwardBody``; Caddy never
Envoy ext_authz     the question's own method; the path behind         with ``with_request_body``
                    ``path_prefix``, which ends in ``uri=``
==================  =================================================  =============================================

A client can send any of these headers too. So nothing is guessed: two accounts that differ are refused, and so is half
of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from idemactor.core.limits import REQUEST_ID_CHARS_MAX
from idemactor.errors import InvalidRequest
from idemactor.gateway.plan import KEY_HEADER
from idemactor.gateway.refs import Place, parse_ref
from idemactor.gateway.request import RawRequest
from idemactor.gateway.source import Source
from idemactor.gateway.words import Format

REQUEST_ID_HEADER: Final = "X-Idemactor-Request-Id"
"""The gateway's name for one request of its own. It has no name that clients use (``X-Request-Id``): they send the same
one again when they try again, and would be taken for the gateway's own retry."""
AUTHORIZATION_HEADER: Final = "X-Idemactor-Authorization"
"""The gateway's own bearer token, where ``Authorization`` is the sender's."""
RESULT_HEADER: Final = "X-Idemactor-Result"
"""What was decided, in a word."""

SOURCE_DEFAULT: Final = "http"
PROCEED_DEFAULT: Final = 200
DENY_ANSWER: Final = "answer"
"""As ``deny``: the sender's own answer, a success among them."""

_OURS: Final = "x-idemactor-"
_NGINX: Final = ("X-Original-Method", "X-Original-URI")
_FORWARDED: Final = ("X-Forwarded-Method", "X-Forwarded-Uri")
_TRAEFIK: Final = "X-Forwarded-Server"
"""Of the gateways that say ``X-Forwarded-Uri``, Traefik alone sends this."""
_PARTIAL: Final = "X-Envoy-Auth-Partial-Body"
_PARAMETERS: Final = frozenset({"source", "proceed", "deny"})
_TARGET_PARAMETER: Final = "uri="
_OWN_METHOD: Final = "method"
_OWN_TARGET: Final = "uri"
"""How a refusal names what the question itself tells: its method, and what is behind ``uri=``."""

_NOT_THE_SENDERS: Final = frozenset(
    name.lower()
    for name in (
        *_NGINX,
        *_FORWARDED,
        _PARTIAL,
        # The framing of the question (RFC 9112, section 6; RFC 9110, section 7.6.1) says nothing of the request.
        *("Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Expect"),
    )
)
_OF_A_BODY: Final = frozenset({"content-type", "content-encoding"})
_METHOD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
"""A token (RFC 9110, section 9.1), of a length that some method might have."""
_TARGET: Final = re.compile(r"[/][^\x00-\x20\x7f]*|\*")
"""A path and its query as they were sent, bytes beyond ASCII included (nginx passes them on), or ``*``."""
_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+")
_STATUS: Final = re.compile(r"[1-5][0-9]{2}")


@dataclass(frozen=True, slots=True)
class Question:
    """What the query says, which the gateway's configuration wrote.

    Attributes:
        source: The kind of sender.
        proceed: The status that lets the request through, 200 to 299.
        deny: The status of every refusal, 400 to 599; None: the refusal's own.
        with_success: Whether a refusal may be a success other than ``proceed``: a stored answer, say.
        target: The path and query of the request, where the gateway puts them behind its own; None: in headers.
    """

    source: str = SOURCE_DEFAULT
    proceed: int = PROCEED_DEFAULT
    deny: int | None = None
    with_success: bool = False
    target: str | None = None


@dataclass(frozen=True, slots=True)
class _Account:
    """One way in which a request is told.

    Attributes:
        names: What told its method and its path, as a refusal names them.
        method: The method.
        target: The path and query.
    """

    names: tuple[str, str]
    method: str
    target: str


def read_question(query: str) -> Question:
    """The question of a query as it came, nothing decoded: a source, statuses, and what ``uri=`` takes to the end.

    Raises:
        InvalidRequest: A parameter is unknown, there twice or no such thing; ``field`` names it.
    """
    own, target = _split(query)
    given: dict[str, str] = {}
    for part in filter(None, own.split("&")):
        name, _, value = part.partition("=")
        if name not in _PARAMETERS or name in given:
            raise InvalidRequest("the parameters are source, proceed, deny and, last, uri, each once", field=name[:64])
        given[name] = value
    deny = given.get("deny")
    question = Question(
        source=given.get("source", SOURCE_DEFAULT),
        proceed=_status(given.get("proceed", str(PROCEED_DEFAULT)), "proceed", 200, 299),
        deny=None if deny in (None, DENY_ANSWER) else _status(deny or "", "deny", 400, 599),
        with_success=deny == DENY_ANSWER,
        target=target,
    )
    if target is not None and question.proceed != PROCEED_DEFAULT:
        raise InvalidRequest("Envoy, which puts the path behind its own, goes on at 200 alone", field="proceed")
    return question


def original_request(
    question: Question, method: str, headers: Sequence[tuple[str, str]], body: bytes, *, keep_authorization: bool
) -> RawRequest:
    """The request that a gateway asks about.

    Args:
        question: What the query says.
        method: The question's own.
        headers: The question's own, names in any case.
        body: The question's own.
        keep_authorization: Whether ``Authorization`` is the sender's, and not the gateway's.

    Raises:
        InvalidRequest: The gateway does not say what it asks about, or says it twice; ``field`` names the header.
    """
    asked = RawRequest(method, question.target or "", tuple(headers), body)
    if any(value.lower() != "false" for value in asked.header(_PARTIAL)):
        raise InvalidRequest("the gateway sent only a part of the body", field="body")
    if question.target is None:
        told = _told(asked)
        _check_success_is_told_apart(question, asked)
    else:
        told = _Account((_OWN_METHOD, _OWN_TARGET), method, question.target)
    if not _METHOD.fullmatch(told.method):
        raise InvalidRequest("the method of the request is no method", field=told.names[0])
    if not _TARGET.fullmatch(told.target):
        raise InvalidRequest("the path of the request is none", field=told.names[1])
    dropped = _NOT_THE_SENDERS
    if not keep_authorization:
        dropped |= {"authorization"}
    if not body:
        dropped |= _OF_A_BODY
    kept = [pair for pair in headers if pair[0].lower() not in dropped and not pair[0].lower().startswith(_OURS)]
    return RawRequest(told.method, told.target, tuple(kept), body)


def check_not_joined(source: Source, question: Question, original: RawRequest) -> None:
    """Refuse an id that may be two: Envoy, which alone tells the target itself, joins a header that is sent twice.

    Raises:
        InvalidRequest: There is a comma in one; ``field`` names the header.
    """
    if question.target is None:
        return
    recipes = (ref for recipe in source.plan.ids for ref in recipe)
    names = [ref.text.partition(":")[2] for ref in recipes if ref.place is Place.HEADER]
    for name in ([KEY_HEADER] if source.reads_key_header else []) + names:
        if any("," in value for value in original.header(name)):
            raise InvalidRequest(f"{name} is there twice, or has a comma", field=f"header:{name}")


def request_id_of(values: Sequence[str]) -> str | None:
    """The gateway's name for this request of its own; None where it has none.

    Args:
        values: Every value of ``REQUEST_ID_HEADER``.

    Raises:
        InvalidRequest: It is there twice, or is no possible one.
    """
    if not values:
        return None
    [value, *more] = values
    if more or len(value) > REQUEST_ID_CHARS_MAX or not _PRINTABLE.fullmatch(value):
        wanted = f"visible ASCII, up to {REQUEST_ID_CHARS_MAX} characters, once"
        raise InvalidRequest(f"the gateway's request id is {wanted}", field=REQUEST_ID_HEADER)
    return value


def needs_body(source: Source, *, derived: bool) -> str | None:
    """What of ``source`` cannot be had without a body; None: nothing.

    A mode that went unseen would make a test the same as the real thing, a nonce would make two orders one, and what a
    key is made of would make all of them one.

    Args:
        derived: Whether the key is one that is made of what the request says.
    """
    if source.verify is not None:
        return "its signature covers it"
    named = [source.mode, *((source.nonce, *source.derive) if derived else ())]
    found = next((text for text in named if text is not None and _in_body(text)), None)
    return None if found is None else f"it reads {found} there"


def reads_body(source: Source) -> bool:
    """Whether ``source`` may find its key in the body, or make one of it."""
    recipes = [(recipe,) if isinstance(recipe, str) else recipe for recipe in source.id]
    return any(_in_body(text) for recipe in (*recipes, source.derive) for text in recipe)


def bodiless(source: Source) -> Source:
    """``source`` for a request whose body is not there, and so is none of any format."""
    return source if source.format is Format.AUTO else replace(source, format=Format.AUTO, pattern=None)


def no_body(source: Source, why: str) -> InvalidRequest:
    """What a request is told whose body its source needs, and its gateway did not send."""
    return InvalidRequest(f"the source {source.name} needs the body and the gateway sent none: {why}", field="body")


def _split(query: str) -> tuple[str, str | None]:
    """What is ours, and what is the request's: the first ``uri=`` takes the rest, whatever a client put there."""
    if query.startswith(_TARGET_PARAMETER):
        return "", query.removeprefix(_TARGET_PARAMETER)
    own, found, target = query.partition(f"&{_TARGET_PARAMETER}")
    return own, target if found else None


def _status(text: str, name: str, low: int, high: int) -> int:
    if _STATUS.fullmatch(text) and low <= int(text) <= high:
        return int(text)
    also = f", or {DENY_ANSWER}" if name == "deny" else ""
    raise InvalidRequest(f"{name} is a status from {low} to {high}{also}", field=name)


def _told(asked: RawRequest) -> _Account:
    """The method and the path that headers tell."""
    accounts = [account for names in (_NGINX, _FORWARDED) if (account := _account(asked, names)) is not None]
    if not accounts:
        raise InvalidRequest("the gateway does not say which path it asks about", field=_NGINX[1])
    if len({(account.method, account.target) for account in accounts}) > 1:
        raise InvalidRequest(f"{_NGINX[1]} and {_FORWARDED[1]} do not tell the same request", field=_NGINX[1])
    return accounts[0]


def _account(asked: RawRequest, names: tuple[str, str]) -> _Account | None:
    values = [_single(asked, name) for name in names]
    if values == [None, None]:
        return None
    for name, value in zip(names, values, strict=True):
        if value is None:
            raise InvalidRequest(f"the gateway says only a half of what it asks about: {name} is missing", field=name)
    return _Account(names, str(values[0]), str(values[1]))


def _single(asked: RawRequest, name: str) -> str | None:
    """The value of a header; an empty one is how some gateways remove it."""
    values = [value for value in asked.header(name) if value]
    if len(values) > 1:
        raise InvalidRequest(f"{name} is there {len(values)} times", field=name)
    return values[0] if values else None


def _check_success_is_told_apart(question: Question, asked: RawRequest) -> None:
    """nginx and Traefik let a request through at any 2xx: they would let a duplicate through that is told one."""
    if question.with_success and (asked.header(_NGINX[1]) or asked.header(_TRAEFIK)):
        raise InvalidRequest("this gateway takes every 2xx for leave to go on: deny is a status here", field="deny")


def _in_body(text: str) -> bool:
    return parse_ref(text).place in (Place.MEMBER, Place.BODY)
