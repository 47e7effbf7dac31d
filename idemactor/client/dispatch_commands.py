"""Durable dispatch as methods: handing an intent over, watching it, and fetching work (contract, section 15)."""

from __future__ import annotations

from idemactor.client.asking import Asking, only
from idemactor.client.bounds import check_wait
from idemactor.client.dispatching import EntryRef, Headers, Operation, OutboxEntry, intent_from
from idemactor.client.flight import Flight
from idemactor.client.params import members_of
from idemactor.client.results import (
    Acked,
    Cancelled,
    Committed,
    Completed,
    Dispatched,
    Outcome,
    Postponed,
    Released,
    entries_of,
)


class DispatchCommands(Asking):
    """The calls of those who hand work over, and of the services that fetch it."""

    async def dispatch(
        self,
        namespace: str,
        key: str,
        body: object,
        *,
        content_type: str | None = None,
        headers: Headers | None = None,
        payload: object = None,
        payload_json: str | None = None,
        fingerprint: str | None = None,
        order_key: str | None = None,
        not_before: int | None = None,
        expires_in_ms: int | None = None,
        ttl_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> Dispatched | Completed:
        """Hand an intent over: once this returns it is kept, and delivered whatever becomes of this program.

        Args:
            namespace: Whose destination, or whose polling services, get it.
            key: What must not be done twice: a repeat is told of the same operation.
            body: Bytes as they are, text as UTF-8, anything else as JSON.
            content_type: None: ``application/json`` where the body was made JSON.
            headers: What else the destination is to get.
            payload: What the key stands for, where that is not the body.
            payload_json: The same as JSON text.
            fingerprint: The caller's own digest of it, instead.
            order_key: Intents of one are delivered strictly one after the other.
            not_before: When it may first be sent, milliseconds since the epoch.
            expires_in_ms: How long from now it is worth sending.
            ttl_ms: How long its outcome is kept.
            timeout_ms: As everywhere.

        Raises:
            InvalidRequest: The intent cannot be sent, a header of it for one.
            MismatchError: The key stands for another payload.
            InFlightError: Somebody holds the key, and does the work itself.
            InDoubtError: Nobody knows what became of somebody's attempt to do it.
            QuotaExceeded: The outbox or the namespace is full.
        """
        given = members_of(
            "dispatch",
            namespace=namespace,
            key=key,
            intent=intent_from(body, content_type, headers),
            payload=payload,
            payload_json=payload_json,
            fingerprint=fingerprint,
            order_key=order_key,
            not_before=not_before,
            expires_in_ms=expires_in_ms,
            ttl_ms=ttl_ms,
        )
        answer = await self._send(Flight("dispatch", given), timeout_ms)
        assert isinstance(answer, Dispatched | Completed)
        return answer

    async def operation(
        self, namespace: str, operation_id: str, *, wait_ms: int = 0, timeout_ms: int | None = None
    ) -> Operation:
        """How a dispatched operation stands, after waiting for its end at most ``wait_ms``. Raises: NotFound."""
        check_wait("operation", wait_ms)
        given = members_of("operation", namespace=namespace, operation_id=operation_id, wait_ms=wait_ms or None)
        return only(Operation, await self._send(Flight("operation", given, waits_ms=wait_ms), timeout_ms))

    async def cancel(self, namespace: str, operation_id: str, *, timeout_ms: int | None = None) -> Cancelled:
        """Take an operation back of which nothing was sent. Raises: UncancellableError, NotFound."""
        given = members_of("cancel", namespace=namespace, operation_id=operation_id)
        return only(Cancelled, await self._send(Flight("cancel", given), timeout_ms))

    async def poll(
        self,
        namespace: str,
        *,
        max_entries: int | None = None,
        wait_ms: int = 0,
        visibility_ms: int | None = None,
        holder: str | None = None,
        timeout_ms: int | None = None,
    ) -> tuple[OutboxEntry, ...]:
        """Fetch what is due, each at least once: deal with it, then ``ack``, or ``nack`` what cannot be dealt with.

        Args:
            namespace: Whose.
            max_entries: At most so many; None: the server's default.
            wait_ms: How long to wait for the first.
            visibility_ms: How long they are shown to nobody else; what is not acknowledged by then is shown again.
            holder: Who takes them, for people; None: the client's.
            timeout_ms: As everywhere.
        """
        check_wait("outbox.poll", wait_ms)
        given = members_of(
            "outbox.poll",
            namespace=namespace,
            max=max_entries,
            wait_ms=wait_ms or None,
            visibility_ms=visibility_ms,
            holder=holder or self._holder,
        )
        return entries_of(await self._ask(Flight("outbox.poll", given, waits_ms=wait_ms), timeout_ms))

    async def ack(
        self,
        namespace: str,
        entry: EntryRef,
        *,
        outcome: Outcome | None = None,
        ttl_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> Committed | Acked:
        """An entry is dealt with: an intent is committed with its ``outcome``, an event is gone.

        Raises:
            StaleTokenError: It was shown to somebody else meanwhile.
            UnknownKeyError: There is no record.
        """
        given = members_of("outbox.ack", namespace=namespace, outcome=outcome, ttl_ms=ttl_ms, **_named(entry))
        answer = await self._send(Flight("outbox.ack", given), timeout_ms)
        assert isinstance(answer, Committed | Acked)
        return answer

    async def nack(
        self,
        namespace: str,
        entry: EntryRef,
        *,
        delay_ms: int | None = None,
        reason: str | None = None,
        failed: bool = False,
        outcome: Outcome | None = None,
        timeout_ms: int | None = None,
    ) -> Postponed | Committed | Released:
        """An entry was not dealt with: it is shown again after ``delay_ms``, or, ``failed``, never.

        What failed is committed with its ``outcome``, or the key is freed: as the namespace's ``on_failure`` says.

        Raises:
            StaleTokenError: It was shown to somebody else meanwhile.
            AlreadyCommittedError: It is dealt with.
            UnknownKeyError: There is no record.
        """
        given = members_of(
            "outbox.nack",
            namespace=namespace,
            delay_ms=delay_ms,
            reason=reason,
            failed=failed or None,
            outcome=outcome,
            **_named(entry),
        )
        answer = await self._send(Flight("outbox.nack", given), timeout_ms)
        assert isinstance(answer, Postponed | Committed | Released)
        return answer


def _named(entry: object) -> dict[str, object]:
    """The members that say which entry it is. Raises: TypeError: it is none."""
    if not isinstance(entry, EntryRef):
        raise TypeError(f"entry is an OutboxEntry or an EntryRef, not {type(entry).__name__}")
    return {"id": entry.id, "key": entry.key, "token": entry.token}
