"""Answers as they leave over HTTP: JSON, or a problem with its status and headers (contract, 5 and 12; RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from idemactor.core.commands import Command, Dispatch
from idemactor.core.limits import RETRY_AFTER_S_MAX
from idemactor.core.queries import Query
from idemactor.core.replies import Dispatched, Reserved
from idemactor.core.values import slotted
from idemactor.errors import Code, RequestError
from idemactor.shard.mailbox import Answer
from idemactor.wire.answers import CREATED, TAKEN_ON, body_of, dispatched_json, reserved_json, status_of
from idemactor.wire.problems import MEDIA_TYPE, http_status_of_code, problem
from idemactor.wire.refusals import detail_of, refusal_of, retry_after_s
from idemactor.wire.requests import Dialect

JSON_TYPE: Final = "application/json"

_text: Final = json.JSONEncoder(separators=(",", ":")).encode

_MS_PER_S: Final = 1_000
_CHALLENGE: Final = "Bearer"
"""RFC 9110, section 11.6.1: a 401 says how to authenticate. Not where a sender's signature is wrong: no scheme that is
registered is its, and a bearer token would not help."""
_ACQUIRING_ENDS: Final = ("/reserve", "/accept", "/dispatch", "/authorize", "/verdict")


@slotted
class Told:
    """An answer before any framework: its status, its body, and the headers that are its own."""

    status: int
    media_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def encode(value: object) -> bytes:
    """JSON as it leaves."""
    return _text(value).encode()


def told(members: Mapping[str, object], status: int = 200, media_type: str = JSON_TYPE) -> Told:
    """``members`` as JSON."""
    return Told(status, media_type, encode(members))


def answered(answer: Answer, command: Command | Query, *, is_operator: bool) -> Told:
    """The answer to a call that reached its shard."""
    if type(answer) is Reserved:
        return Told(CREATED, JSON_TYPE, reserved_json(answer))
    if type(answer) is Dispatched and type(command) is Dispatch:
        place = f"/v1/{command.identity.namespace}/operations/{answer.operation_id}"
        return Told(TAKEN_ON, JSON_TYPE, dispatched_json(answer), (("Location", place),))
    members = body_of(answer, command, operator=is_operator, dialect=Dialect.JSON)
    status = status_of(answer, command)
    refusal = refusal_of(answer)
    if refusal is None:
        return told(members, status)
    members = problem(status, refusal.code, detail_of(answer), title=refusal.title, members=members)
    return replace(told(members, status, MEDIA_TYPE), headers=_retry_after(retry_after_s(answer)))


def refused(error: RequestError, path: str, status: int | None = None) -> Told:
    """The answer to a call that never reached the table of states; with the status of its code where none is given."""
    members: dict[str, object] = {} if error.field is None else {"field": error.field}
    retry_s = None
    if error.retry_after_ms is not None:
        retry_s = min(RETRY_AFTER_S_MAX, max(1, -(-error.retry_after_ms // _MS_PER_S)))
    status = http_status_of_code(error.code) if status is None else status
    return problem_told(status, error.code, error.detail, path, members, retry_s)


def problem_told(
    status: int,
    code: Code,
    detail: str,
    path: str,
    members: Mapping[str, object] = {},
    retry_s: int | None = None,
    title: str | None = None,
) -> Told:
    """A refusal; one of a call that asks whether to go on, as ``path`` has it, also says that its caller may not."""
    proceed = {"proceed": False} if path.endswith(_ACQUIRING_ENDS) else {}
    body = problem(status, code, detail, title=title, members={**members, **proceed})
    headers = _retry_after(retry_s)
    if code is Code.UNAUTHENTICATED:
        headers = (("WWW-Authenticate", _CHALLENGE), *headers)
    return replace(told(body, status, MEDIA_TYPE), headers=headers)


def _retry_after(seconds: int | None) -> tuple[tuple[str, str], ...]:
    return () if seconds is None else (("Retry-After", str(seconds)),)
