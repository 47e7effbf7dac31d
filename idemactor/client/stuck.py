"""What is stuck, as an operator's client is told of it (contract, 12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from idemactor.client.errors import ProtocolViolation
from idemactor.client.results import as_members
from idemactor.core.stuck import Why

__all__ = ["Stuck", "StuckList", "Unfetched", "Why", "stuck_of"]


@dataclass(frozen=True, slots=True)
class Stuck:
    """An operation, or an incident, that somebody may have to see to; times in milliseconds since the epoch.

    Attributes:
        token: Of an incident the one that came too late.
        holder: Who holds it, or held it last; of an incident None.
        since: Since when.
        for_ms: How long that is, by the server's clock.
        waiting: How many callers wait for the key.
        reason: What its holder said, or the destination's latest answer.
        destination: Where its intent is delivered to.
        due_at: When its intent is tried next.
        incident: The id of an incident, for ``acknowledge``; None: it is none, and so is ``present_token``.
        present_token: The token that was valid when the late one came.
    """

    why: Why
    namespace: str
    key: str
    operation_id: str
    attempt: int | None
    token: int
    holder: str | None
    since: int
    for_ms: int
    lease_expires_at: int | None
    waiting: int
    contested: bool
    reason: str | None
    destination: str | None
    due_at: int | None
    incident: str | None
    present_token: int | None


@dataclass(frozen=True, slots=True)
class Unfetched:
    """Events of a namespace that nobody has fetched; since when, milliseconds since the epoch."""

    namespace: str
    entries: int
    since: int


@dataclass(frozen=True, slots=True)
class StuckList:
    """What is stuck in all the namespaces of the client's token.

    Attributes:
        stuck: The longest first.
        unfetched: By namespace.
        more: Whether there is, or may be, more of it.
        silent_shards: Those that did not answer in time: what is in them is not told.
    """

    stuck: tuple[Stuck, ...]
    unfetched: tuple[Unfetched, ...]
    more: bool
    silent_shards: tuple[int, ...]


_STUCK = [field.name for field in fields(Stuck) if field.name != "why"]


def stuck_of(members: object) -> StuckList:
    """What an answer says.

    Raises:
        ProtocolViolation: It lacks a member, or has one of the wrong type.
    """
    table = as_members(members)
    try:
        return StuckList(
            stuck=tuple(map(_one, table["stuck"])),
            unfetched=tuple(
                Unfetched(each["namespace"], each["entries"], each["since"]) for each in table["unfetched"]
            ),
            more=table["more"],
            silent_shards=tuple(table["silent_shards"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolViolation("the server's answer lacks a member, or has one of the wrong type") from error


def _one(members: Mapping[str, Any]) -> Stuck:
    return Stuck(why=Why(members["why"]), **{name: members[name] for name in _STUCK})
