"""What one caller of a real server sent and was told, and when, as far as anybody outside can know."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from idemactor.core.commands import Accept, Command, Commit, Doubt, Extend, Reserve, Resolve, Verdict
from idemactor.core.policy import Policy
from idemactor.core.record import Outcome, Record, State
from idemactor.core.replies import (
    Accepted,
    AlreadyCommitted,
    Committed,
    Completed,
    Doubted,
    Extended,
    Found,
    InDoubt,
    InFlight,
    Released,
    Reply,
    Reserved,
    Stale,
    Unknown,
    Withdrawn,
)

UNTOLD: Final = -1
"""Stands for a time or a number that an answer does not tell."""

Told = Mapping[str, Any]
"""The members of an answer, of either door."""


@dataclass(frozen=True, slots=True)
class Call:
    """One command of one caller.

    Attributes:
        invoked_ms: When it was sent, milliseconds since the epoch by the caller's clock.
        returned_ms: When its answer came; where none did, when it can have had no effect any more: its server was dead.
            None: nobody knows, it may still be under way.
        reply: None: the answer was lost, it may have had its effect or not.
    """

    command: Command
    policy: Policy
    invoked_ms: float
    returned_ms: float | None
    reply: Reply | None

    def __repr__(self) -> str:
        until = "" if self.returned_ms is None else f"{self.returned_ms:.1f}"
        return f"[{self.invoked_ms:.1f}..{until}] {self.command} -> {self.reply}"

    @property
    def lasts_ms(self) -> int | None:
        """How long what it grants or keeps lasts from its decision on; None: it grants and keeps nothing."""
        command, policy = self.command, self.policy
        match command:
            case Reserve():
                return command.lease_ms if command.lease_ms is not None else policy.lease_ms
            case Extend():
                return command.lease_ms
            case Accept() | Commit():
                return command.ttl_ms if command.ttl_ms is not None else policy.ttl_ms
            case Resolve(verdict=Verdict.COMMITTED):
                return policy.ttl_ms
            case _:
                return None

    @property
    def decided_ms(self) -> int | None:
        """The server's time of its decision, where its own answer tells it."""
        reply, lasts_ms = self.reply, self.lasts_ms
        match reply:
            case Reserved(repeated=False):
                return reply.reserved_at
            case Extended() if lasts_ms is not None:
                return reply.lease_expires_at - lasts_ms
            case Accepted(repeated=False) if lasts_ms is not None:
                return reply.expires_at - lasts_ms
            case _:
                return None


def ends_told(reply: Reply | None) -> set[int]:
    """The ends of leases and of outcomes that an answer tells, milliseconds since the epoch."""
    ends: set[int | None]
    match reply:
        case Found(record=record):
            ends = {record.lease_expires_at, record.expires_at}
        case _:
            ends = {getattr(reply, "lease_expires_at", None), getattr(reply, "expires_at", None)}
    return {end for end in ends if end is not None and end != UNTOLD}


def reply_of(command: Command, told: Told) -> Reply:
    """The reply that the members of an answer stand for. Raises: AssertionError: no answer to this command has them."""
    result = told.get("result")
    if isinstance(command, Reserve | Accept):
        assert told["proceed"] is (result in ("reserved", "accepted")), told
    match result:
        case "reserved":
            assert told["takeover"] is (told["attempt"] > 1), told
            return Reserved(
                told["key"], told["token"], told["attempt"], told["operation_id"], told["reserved_at"],
                told["lease_expires_at"], told["repeated"],
            )  # fmt: skip
        case "accepted":
            assert told["takeover"] is (told["attempt"] > 1), told
            return Accepted(told["operation_id"], told["attempt"], told["expires_at"], told["repeated"])
        case "completed":
            return Completed(
                told["operation_id"],
                told["committed_at"],
                told["expires_at"],
                _outcome(told["outcome"]),
                rejected=False,
            )
        case "found":
            return Found(told["record"]["key"], _record(told["record"]))
        case _:
            return _short(command, told)


def _short(command: Command, told: Told) -> Reply:  # noqa: C901 - One case for each answer.
    match told.get("result"):
        case "in_flight":
            return InFlight(told["attempt"], told["holder"], told["reserved_at"], told["lease_expires_at"], 1)
        case "in_doubt" if isinstance(command, Doubt):
            return Doubted(told["repeated"])
        case "in_doubt":
            return InDoubt(
                told["attempt"],
                told["operation_id"],
                told["holder"],
                told["reserved_at"],
                told["lease_expires_at"],
                told["reason"],
            )
        case "committed":
            return Committed(told.get("expires_at", UNTOLD), told["repeated"])
        case "released" if isinstance(command, Reserve | Accept):
            return Withdrawn()
        case "released":
            return Released(told["repeated"])
        case "extended":
            return Extended(told["lease_expires_at"])
        case "stale":
            return Stale(told["attempt"])
        case "already_committed":
            return AlreadyCommitted(told["committed_at"], told["expires_at"])
        case "unknown":
            return Unknown()
        case _:
            raise AssertionError(f"no answer to {type(command).__name__}: {told}")


def members_of(command: Command) -> dict[str, Any]:
    """What a door is sent for a command of these histories, in RPC's words: an outcome's body is bytes."""
    members: dict[str, Any] = {"key": command.identity.key}
    for name in ("token", "request_id", "lease_ms", "ttl_ms", "reason"):
        value = getattr(command, name, None)
        if value is not None:
            members[name] = value
    if getattr(command, "wait_ms", 0):
        members["wait_ms"] = getattr(command, "wait_ms", 0)
    verdict = getattr(command, "verdict", None)
    if verdict is not None:
        members["verdict"] = verdict.value
    outcome: Outcome | None = getattr(command, "outcome", None)
    if outcome is not None:
        members["outcome"] = {"status": outcome.status, "body": outcome.body}
    return members


def _outcome(told: Told | None) -> Outcome | None:
    if told is None:
        return None
    body = told.get("body", b"")
    if "body_b64" in told:
        body = base64.b64decode(told["body_b64"])
    return Outcome(
        told["status"],
        tuple((name, value) for name, value in told["headers"]),
        body.encode() if isinstance(body, str) else body,
        told.get("omitted", False),
    )


_STATES: Final = {"pending": State.PENDING, "in_doubt": State.LAPSED, "committed": State.COMMITTED}


def _record(told: Told) -> Record:
    return Record(
        state=_STATES[told["state"]],
        attempt=told["attempt"],
        token=told["token"],
        operation_id=told["operation_id"],
        first_seen_at=told["first_seen_at"],
        reserved_at=told["reserved_at"],
        lease_expires_at=told["lease_expires_at"],
        committed_at=told["committed_at"],
        expires_at=told["expires_at"],
        contested=told["contested"],
        outcome=_outcome(told["outcome"]),
    )
