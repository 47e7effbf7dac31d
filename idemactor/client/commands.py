"""Every command of the contract as a method (contract, sections 3, 5 and 6).

A success is returned; a no is raised, see ``errors.py``. Times are milliseconds, points in time milliseconds since the
epoch. ``timeout_ms`` is how long to go on asking, reconnecting and repeating as need be; where it is over,
``OutOfService`` is raised and nothing is known of what became of the call.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from idemactor.client.dispatching import EntryRef, Headers, Operation, OutboxEntry, content_members, intent_from
from idemactor.client.errors import IdemactorClientError, NotFound, ProtocolViolation, Refused, UnknownKeyError
from idemactor.client.flight import Flight
from idemactor.client.params import Acquisition, acquisition, members, outcome_members
from idemactor.client.results import (
    Accepted,
    Acked,
    Acknowledged,
    Cancelled,
    Committed,
    Completed,
    Dispatched,
    Doubted,
    Extended,
    Forgotten,
    Incident,
    KeyRecord,
    NamespacePolicy,
    Outcome,
    Postponed,
    Released,
    Reserved,
    Resolved,
    Result,
    as_members,
    entries_of,
    incidents_of,
    page_of,
    policy_of,
    result_of,
)
from idemactor.client.settle import Settler
from idemactor.core.delivery import NewEvent

T = TypeVar("T")

Op = Mapping[str, object]
"""One call of a batch: ``op``, ``namespace`` and the members of the single call; an outcome may be an ``Outcome``."""


class Commands(abc.ABC):
    """The commands of a client; what carries them, and how long, is the subclass's."""

    _holder: str | None
    """Who asks, where a call says nothing else."""
    _policies: dict[str, NamespacePolicy]
    """As fetched last."""

    @abc.abstractmethod
    def _ask(self, flight: Flight, timeout_ms: int | None) -> Awaitable[Any]:
        """The result of a call as it came; raises Refused and OutOfService."""

    @abc.abstractmethod
    def _settling(self) -> Settler:
        """What goes on in the background."""

    # ------------------------------------------------------------------------------------------------------- acquiring

    async def reserve(
        self,
        namespace: str,
        key: str,
        *,
        payload: object = None,
        payload_json: str | None = None,
        fingerprint: str | None = None,
        request_id: str | None = None,
        lease_ms: int | None = None,
        ttl_ms: int | None = None,
        window_ms: int | None = None,
        wait_ms: int = 0,
        holder: str | None = None,
        on_duplicate: Literal["replay", "reject"] | None = None,
        timeout_ms: int | None = None,
    ) -> Reserved | Completed:
        """Ask to be the one holder of ``key``.

        A ``request_id`` is made for this one acquisition and repeated after lost answers. If this call is cancelled, or
        ends without an answer, what may have been granted is given back, unless the ``request_id`` is the caller's own.

        Raises:
            InFlightError: Somebody else holds the key (after ``wait_ms``).
            InDoubtError: Nobody knows what became of an earlier attempt.
            MismatchError: The key stands for another payload.
            DuplicateError: It was done before and duplicates are to be refused.
        """
        asked = self._acquisition(
            "reserve",
            namespace=namespace,
            key=key,
            payload=payload,
            payload_json=payload_json,
            fingerprint=fingerprint,
            request_id=request_id,
            lease_ms=lease_ms,
            ttl_ms=ttl_ms,
            window_ms=window_ms,
            holder=holder or self._holder,
            on_duplicate=on_duplicate,
        )
        try:
            return await self._acquire(asked, wait_ms, timeout_ms)
        except Refused:
            raise
        except BaseException:
            self._give_back(asked)
            raise

    async def accept(
        self,
        namespace: str,
        key: str,
        *,
        outcome: Outcome | None = None,
        payload: object = None,
        payload_json: str | None = None,
        fingerprint: str | None = None,
        request_id: str | None = None,
        ttl_ms: int | None = None,
        window_ms: int | None = None,
        holder: str | None = None,
        on_duplicate: Literal["replay", "reject"] | None = None,
        timeout_ms: int | None = None,
    ) -> Accepted | Completed:
        """Reserve and commit in one step; raises as ``reserve`` does."""
        asked = self._acquisition(
            "accept",
            namespace=namespace,
            key=key,
            outcome=outcome,
            payload=payload,
            payload_json=payload_json,
            fingerprint=fingerprint,
            request_id=request_id,
            ttl_ms=ttl_ms,
            window_ms=window_ms,
            holder=holder or self._holder,
            on_duplicate=on_duplicate,
        )
        answer = await self._send(asked.flight, timeout_ms)
        assert isinstance(answer, Accepted | Completed)
        return answer

    # --------------------------------------------------------------------------------------------------------- holding

    async def commit(
        self,
        namespace: str,
        key: str,
        token: int,
        *,
        outcome: Outcome | None = None,
        ttl_ms: int | None = None,
        events: Sequence[NewEvent] = (),
        timeout_ms: int | None = None,
    ) -> Committed:
        """The effect happened; ``events`` (see ``event``) enter the outbox together with that, or not at all.

        Raises:
            StaleTokenError: Somebody else took over.
            UnknownKeyError: There is no record.
            TooLarge: The events are larger than a commit's may be together.
        """
        announced = [content_members(one) for one in events] or None
        given = members(namespace=namespace, key=key, token=token, outcome=outcome, ttl_ms=ttl_ms, events=announced)
        return _only(Committed, await self._send(Flight("commit", given), timeout_ms))

    async def release(
        self, namespace: str, key: str, token: int, *, reason: str | None = None, timeout_ms: int | None = None
    ) -> Released:
        """The effect did not happen: free the key. Raises: StaleTokenError, AlreadyCommittedError, UnknownKeyError."""
        given = members(namespace=namespace, key=key, token=token, reason=reason)
        return _only(Released, await self._send(Flight("release", given), timeout_ms))

    async def extend(
        self, namespace: str, key: str, token: int, lease_ms: int, *, timeout_ms: int | None = None
    ) -> Extended:
        """The holder is still at work: its lease ends ``lease_ms`` from now.

        Raises:
            StaleTokenError: Somebody else took over.
            InDoubtError: Somebody said that this attempt is in doubt.
            AlreadyCommittedError: It is done.
            UnknownKeyError: There is no record.
        """
        given = members(namespace=namespace, key=key, token=token, lease_ms=lease_ms)
        return _only(Extended, await self._send(Flight("extend", given), timeout_ms))

    async def doubt(
        self, namespace: str, key: str, token: int, *, reason: str | None = None, timeout_ms: int | None = None
    ) -> Doubted:
        """Nobody knows whether the effect happened. Raises as ``release`` does."""
        given = members(namespace=namespace, key=key, token=token, reason=reason)
        return _only(Doubted, await self._send(Flight("doubt", given), timeout_ms))

    # ------------------------------------------------------------------------------------------------------- dispatch

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
        given = members(
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
        given = members(namespace=namespace, operation_id=operation_id, wait_ms=wait_ms or None)
        return _only(Operation, await self._send(Flight("operation", given, waits_ms=wait_ms), timeout_ms))

    async def cancel(self, namespace: str, operation_id: str, *, timeout_ms: int | None = None) -> Cancelled:
        """Take an operation back of which nothing was sent. Raises: UncancellableError, NotFound."""
        given = members(namespace=namespace, operation_id=operation_id)
        return _only(Cancelled, await self._send(Flight("cancel", given), timeout_ms))

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
        given = members(
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
        given = members(
            namespace=namespace, id=entry.id, key=entry.key, token=entry.token, outcome=outcome, ttl_ms=ttl_ms
        )
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
        given = members(
            namespace=namespace,
            id=entry.id,
            key=entry.key,
            token=entry.token,
            delay_ms=delay_ms,
            reason=reason,
            failed=failed or None,
            outcome=outcome,
        )
        answer = await self._send(Flight("outbox.nack", given), timeout_ms)
        assert isinstance(answer, Postponed | Committed | Released)
        return answer

    # ------------------------------------------------------------------------------------------- looking and operating

    async def get(self, namespace: str, key: str, *, timeout_ms: int | None = None) -> KeyRecord:
        """The record of a key. Raises: UnknownKeyError."""
        return _only(KeyRecord, await self._send(Flight("get", members(namespace=namespace, key=key)), timeout_ms))

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
        given = members(namespace=namespace, key=key, token=token, verdict=verdict, outcome=outcome)
        return _only(Resolved, await self._send(Flight("resolve", given), timeout_ms))

    async def forget(
        self, namespace: str, key: str, *, force: bool = False, timeout_ms: int | None = None
    ) -> Forgotten:
        """Drop everything about a key. Raises: UnsettledError without ``force``, UnknownKeyError."""
        flight = Flight("forget", members(namespace=namespace, key=key, force=force or None))
        try:
            return _only(Forgotten, await self._send(flight, timeout_ms))
        except UnknownKeyError:
            # It was asked more than once, and an answer is missing: the earlier one did it.
            if flight.uncertain:
                return Forgotten()
            raise

    async def acknowledge(self, namespace: str, incident_id: str, *, timeout_ms: int | None = None) -> Acknowledged:
        """An operator has seen an incident. Raises: NotFound."""
        flight = Flight("acknowledge", members(namespace=namespace, id=incident_id))
        try:
            return _only(Acknowledged, await self._send(flight, timeout_ms))
        except NotFound:
            if flight.uncertain:
                return Acknowledged()
            raise

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
        asked = members(
            namespace=namespace, state=state, contested=contested, older_than_ms=older_than_ms, limit=page_size
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
            asked = members(namespace=namespace, limit=page_size, cursor=cursor)
            found, cursor = incidents_of(await self._ask(Flight("incidents", asked), timeout_ms))
            for incident in found:
                yield incident
            if cursor is None:
                return

    async def policy(self, namespace: str, *, timeout_ms: int | None = None) -> NamespacePolicy:
        """The published settings of a namespace; the client remembers their ``on_unavailable``."""
        found = policy_of(await self._ask(Flight("policy", members(namespace=namespace)), timeout_ms))
        self._policies[namespace] = found
        return found

    async def ping(self, *, timeout_ms: int | None = None) -> None:
        """Return once the server answered."""
        as_members(await self._ask(Flight("ping", {}), timeout_ms))

    async def batch(self, ops: Sequence[Op], *, timeout_ms: int | None = None) -> list[Result | IdemactorClientError]:
        """Several calls at once: a convenience, no transaction. A no stands in its place in the list and is not raised.

        Reserves and accepts without a ``request_id`` are given one each. If this call is cancelled, or ends without an
        answer, what may have been reserved is given back.
        """
        asked = [_prepared(op) for op in ops]
        flight = Flight("batch", {"ops": [params for params, _ in asked]})
        try:
            answer = as_members(await self._ask(flight, timeout_ms))
        except Refused:
            raise
        except BaseException:
            for _, reserve in asked:
                if reserve is not None and flight.may_have_acted:
                    reserve.flight.uncertain = True
                    self._give_back(reserve)
            raise
        results = answer.get("results")
        if not isinstance(results, list) or len(results) != len(asked):
            raise ProtocolViolation("the server answered a batch with another number of results")
        return [_batched(str(params["op"]), found) for (params, _), found in zip(asked, results, strict=True)]

    # ----------------------------------------------------------------------------------------------------------- inside

    def _acquisition(self, method: str, **given: object) -> Acquisition:
        return acquisition(method, members(**given))

    async def _acquire(self, asked: Acquisition, wait_ms: int, timeout_ms: int | None) -> Reserved | Completed:
        """One reserve, without any care for what becomes of it."""
        answer = result_of(asked.method, await self._ask(asked.sending(wait_ms), timeout_ms))
        assert isinstance(answer, (Reserved, Completed))
        return answer

    def _give_back(self, asked: Acquisition) -> None:
        if asked.own and asked.flight.may_have_acted:
            self._settling().give_back(asked)

    async def _send(self, flight: Flight, timeout_ms: int | None) -> Result:
        return result_of(flight.method, await self._ask(flight, timeout_ms))


def _only(kind: type[T], result: Result) -> T:
    """``result_of`` has seen to it that an answer is one that its call may get."""
    assert isinstance(result, kind)
    return result


def _prepared(op: Op) -> tuple[dict[str, Any], Acquisition | None]:
    """One call of a batch as it is sent, and its acquisition if it is a reserve."""
    params = {n: outcome_members(v) if isinstance(v, Outcome) else v for n, v in op.items() if v is not None}
    if params.get("op") not in ("reserve", "accept"):
        return params, None
    alone = acquisition(str(params["op"]), {name: value for name, value in params.items() if name != "op"})
    params["request_id"] = alone.params["request_id"]
    return params, alone if alone.method == "reserve" and alone.own else None


def _batched(op: str, found: object) -> Result | IdemactorClientError:
    try:
        return result_of(op, found)
    except IdemactorClientError as error:
        return error
