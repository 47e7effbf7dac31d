"""Forward-auth: a gateway asks whether a request may go on, and its key is accepted (contract, 13).

The question and the answer are read and written by ``gateway/authorize*.py``; here they meet the shards. What is wrong
with the gateway's own configuration (its token, the namespace, the parameters) is refused as everywhere; what is wrong
with the request that it asks about is refused in the codes that the gateway understands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import trio
from quart import Request
from werkzeug.datastructures import Headers

from idemactor.core.commands import Accept, Get
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.limits import BODY_BYTES_MAX
from idemactor.core.replies import Accepted, Found, Unknown
from idemactor.errors import InvalidRequest, RequestError
from idemactor.gateway.authorize import (
    AUTHORIZATION_HEADER,
    REQUEST_ID_HEADER,
    RESULT_HEADER,
    Question,
    bodiless,
    check_not_joined,
    needs_body,
    no_body,
    original_request,
    read_question,
    reads_body,
    request_id_of,
)
from idemactor.gateway.authorize_answers import (
    error_told,
    gone,
    proceed_told,
    refusal_told,
    verdict_code,
    verdict_of_record,
    verdict_of_word,
)
from idemactor.gateway.request import RawRequest
from idemactor.gateway.resolve import Resolved, Rule, resolve
from idemactor.gateway.source import Source
from idemactor.server import operations
from idemactor.server.context import ServerContext
from idemactor.server.http_answers import Told
from idemactor.server.http_request import HttpRequest, read_body
from idemactor.server.http_shared import DOOR
from idemactor.wire.requests import Scope

OP: Final = "accept"
"""What a gateway does here, and has to be allowed to."""
LOOKS: Final = 3
"""How many turns the connection gets to show that the gateway hung up, before the key is accepted. One is enough over
plain TCP."""
BODILESS: Final = ";bodiless"
"""What the rule of a fingerprint ends in that was made without the body: it says nothing about one made with it."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who asks, and what."""

    scope: Scope
    question: Question
    source: Source


async def authorize(context: ServerContext, request: HttpRequest, namespace: str) -> Told:
    """Accept the key of the request that a gateway asks about, and tell the gateway whether it may go on.

    Raises:
        RequestError: The gateway's own fault: its token, the namespace, or a parameter.
    """
    asked = _asked(context, request, namespace)
    try:
        command = _accept(context, asked, await _original(context, request, asked), request.headers)
    except RequestError as error:
        context.observer.refused(DOOR, error.code)
        return error_told(error, request.path, asked.source.answers, asked.question)
    for _ in range(LOOKS):
        # A gateway that hung up meanwhile has told its sender no: this is where that ends the question.
        await trio.lowlevel.checkpoint()
    [answer] = await operations.carry_out(context, [command], request.handed_over)
    if isinstance(answer, Accepted):
        return proceed_told(answer, asked.question)
    return refusal_told(answer, command, asked.source.answers, asked.question)


async def verdict(context: ServerContext, request: HttpRequest, namespace: str) -> Told:
    """What the sender of a request is told that was refused a moment ago. It decides nothing.

    For gateways that show a refusal's status alone: the result comes back in ``X-Idemactor-Result``.

    Raises:
        RequestError: As in ``authorize``, or the gateway does not say what was decided.
    """
    asked = _asked(context, request, namespace)
    words = request.headers.getlist(RESULT_HEADER)
    word = words[0] if len(words) == 1 else ""
    standing = verdict_of_word(word, asked.scope.policy.records_max) if verdict_code(word) is None else None
    answers = asked.source.answers
    try:
        command = _accept(context, asked, await _original(context, request, asked), request.headers)
        if standing is not None:
            return refusal_told(standing, command, answers, None)
        return await _looked_up(context, request, command, asked, word)
    except RequestError as error:
        return error_told(error, request.path, answers, None)


async def _looked_up(context: ServerContext, request: HttpRequest, command: Accept, asked: _Asked, word: str) -> Told:
    """What the record of the key says.

    Raises:
        RequestError: There is none any more.
    """
    [found] = await operations.carry_out(context, [Get(command.identity)], request.handed_over)
    if isinstance(found, Found):
        answer = verdict_of_record(found.record, word, context.now_ms())
        return refusal_told(answer, command, asked.source.answers, None)
    code = verdict_code(word)
    if isinstance(found, Unknown) and code is not None:
        raise gone(code)
    return refusal_told(found, command, asked.source.answers, None)


def _asked(context: ServerContext, request: Request, namespace: str) -> _Asked:
    own = request.headers.getlist(AUTHORIZATION_HEADER) or request.headers.getlist("Authorization")
    scope = context.authenticator.scope(context.authenticator.from_header(own), namespace, OP)
    question = read_question(request.scope["query_string"].decode("latin-1"))
    source = context.sources.get(question.source)
    if source is None:
        raise InvalidRequest("there is no such source", field="source")
    return _Asked(scope, question, source)


async def _original(context: ServerContext, request: HttpRequest, asked: _Asked) -> RawRequest:
    body = await read_body(request, BODY_BYTES_MAX, context.arrivals)
    is_open = context.authenticator.anonymous is not None
    return original_request(
        asked.question,
        request.method,
        list(request.headers.items()),
        body,
        keep_authorization=is_open or AUTHORIZATION_HEADER in request.headers,
    )


def _accept(context: ServerContext, asked: _Asked, original: RawRequest, headers: Headers) -> Accept:
    request_id = request_id_of(headers.getlist(REQUEST_ID_HEADER))
    check_not_joined(asked.source, asked.question, original)
    resolved = _resolved(context, asked.source, original)
    fingerprint = resolved.fingerprint
    window_ms, ttl_ms = resolved.memory(asked.scope.policy.ttl_ms)
    if not original.body:
        fingerprint = Fingerprint(fingerprint.value, fingerprint.rule + BODILESS)
    identity = Identity(asked.scope.tenant, asked.scope.namespace, resolved.key)
    if asked.scope.watch is not None:
        asked.scope.watch(OP, identity, {"source": asked.source.name, "request": original})
    return Accept(
        identity,
        request_id=request_id,
        fingerprint=fingerprint,
        ttl_ms=ttl_ms,
        window_ms=window_ms,
    )


def _resolved(context: ServerContext, source: Source, original: RawRequest) -> Resolved:
    """The key of the request.

    Raises:
        RequestError: It has none; where the gateway left out the body that the source needs, that is what it says.
    """
    if not original.body and (why := needs_body(source, derived=False)) is not None:
        raise no_body(source, why)
    try:
        read_as = source if original.body else bodiless(source)
        resolved = resolve(read_as, original, now_ms=context.now_ms(), forged=context.observer.forged)
    except InvalidRequest as error:
        if original.body or not reads_body(source):
            raise
        raise no_body(source, error.detail) from None
    if not original.body and resolved.rule is Rule.DERIVED and (why := needs_body(source, derived=True)) is not None:
        raise no_body(source, why)
    return resolved
