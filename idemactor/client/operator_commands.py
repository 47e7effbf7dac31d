"""Looking at keys, and settling by hand what nobody else can (contract, section 5)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

from idemactor.client.asking import Asking, only
from idemactor.client.errors import NotFound, UnknownKeyError
from idemactor.client.flight import Flight
from idemactor.client.params import members, members_of
from idemactor.client.results import (
    Acknowledged,
    Forgotten,
    Incident,
    KeyRecord,
    Outcome,
    Resolved,
    incidents_of,
    page_of,
)
from idemactor.client.stuck import StuckList, stuck_of


class OperatorCommands(Asking):
    """What is looked at with any token, and what only an operator's may do."""

    async def get(self, namespace: str, key: str, *, timeout_ms: int | None = None) -> KeyRecord:
        """The record of a key. Raises: UnknownKeyError."""
        given = members_of("get", namespace=namespace, key=key)
        return only(KeyRecord, await self._send(Flight("get", given), timeout_ms))

    async def resolve(
        self,
        namespace: str,
        key: str,
        token: int,
        verdict: Literal["committed", "released"],
        *,
        outcome: Outcome | None = None,
        timeout_ms: int | None = None,
    ) -> Resolved:
        """Settle an operation in doubt. Raises: InFlightError, StaleTokenError, AlreadyCommittedError."""
        given = members_of("resolve", namespace=namespace, key=key, token=token, verdict=verdict, outcome=outcome)
        return only(Resolved, await self._send(Flight("resolve", given), timeout_ms))

    async def forget(
        self, namespace: str, key: str, *, force: bool = False, timeout_ms: int | None = None
    ) -> Forgotten:
        """Drop everything about a key. Raises: UnsettledError without ``force``, UnknownKeyError."""
        flight = Flight("forget", members_of("forget", namespace=namespace, key=key, force=force or None))
        try:
            return only(Forgotten, await self._send(flight, timeout_ms))
        except UnknownKeyError:
            # It was asked more than once, and an answer is missing: the earlier one did it.
            if flight.uncertain:
                return Forgotten()
            raise

    async def acknowledge(self, namespace: str, incident_id: str, *, timeout_ms: int | None = None) -> Acknowledged:
        """An operator has seen an incident. Raises: NotFound."""
        flight = Flight("acknowledge", members_of("acknowledge", namespace=namespace, id=incident_id))
        try:
            return only(Acknowledged, await self._send(flight, timeout_ms))
        except NotFound:
            if flight.uncertain:
                return Acknowledged()
            raise

    async def stuck(
        self, *, older_than_ms: int | None = None, limit: int | None = None, timeout_ms: int | None = None
    ) -> StuckList:
        """What is stuck, for how long, and who holds it, over all namespaces of the client's token.

        Args:
            older_than_ms: How long something pends or waits to be delivered before it counts; None: a minute. What is
                in doubt, and incidents, count at once.
            limit: How many at most; None: 100.
            timeout_ms: As in ``Client``.

        Raises:
            Forbidden: The token is no operator's.
        """
        asked = members_of("stuck", older_than_ms=older_than_ms, limit=limit)
        return stuck_of(await self._ask(Flight("stuck", asked), timeout_ms))

    async def records(
        self,
        namespace: str,
        *,
        state: Literal["pending", "in_doubt", "committed"] | None = None,
        contested: bool | None = None,
        older_than_ms: int | None = None,
        page_size: int | None = None,
        timeout_ms: int | None = None,
    ) -> AsyncGenerator[KeyRecord, None]:
        """The records of a namespace, page by page as they are asked for, outcomes left out."""
        asked = members_of(
            "records",
            namespace=namespace,
            state=state,
            contested=contested,
            older_than_ms=older_than_ms,
            limit=page_size,
        )
        cursor: str | None = None
        while True:
            answer = await self._ask(Flight("records", asked | members(cursor=cursor)), timeout_ms)
            page = page_of(answer)
            for record in page.records:
                yield record
            if (cursor := page.next) is None:
                return

    async def incidents(
        self, namespace: str, *, page_size: int | None = None, timeout_ms: int | None = None
    ) -> AsyncGenerator[Incident, None]:
        """The incidents that nobody acknowledged yet, page by page as they are asked for."""
        cursor: str | None = None
        while True:
            asked = members_of("incidents", namespace=namespace, limit=page_size, cursor=cursor)
            found, cursor = incidents_of(await self._ask(Flight("incidents", asked), timeout_ms))
            for incident in found:
                yield incident
            if cursor is None:
                return
