"""Every command of the contract as a method (contract, sections 3, 5 and 6).

A success is returned; a no is raised, see ``errors.py``. Times are milliseconds, points in time milliseconds since the
epoch. ``timeout_ms`` is how long to go on asking, reconnecting and repeating as need be; where it is over,
``OutOfService`` is raised and nothing is known of what became of the call.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from idemactor.client.asking import only
from idemactor.client.bounds import check_wait
from idemactor.client.dispatch_commands import DispatchCommands
from idemactor.client.dispatching import content_members
from idemactor.client.errors import IdemactorClientError, ProtocolViolation, Refused
from idemactor.client.flight import Flight
from idemactor.client.operator_commands import OperatorCommands
from idemactor.client.params import Acquisition, acquisition, members_of, outcome_members
from idemactor.client.results import (
    Accepted,
    Committed,
    Completed,
    Doubted,
    Extended,
    NamespacePolicy,
    Outcome,
    Released,
    Reserved,
    Result,
    as_members,
    policy_of,
    result_of,
)
from idemactor.client.settle import Settler
from idemactor.core.delivery import NewEvent

Op = Mapping[str, object]
"""One call of a batch: ``op``, ``namespace`` and the members of the single call; an outcome may be an ``Outcome``."""


class Commands(DispatchCommands, OperatorCommands):
    """The commands of a client."""

    _policies: dict[str, NamespacePolicy]
    """As fetched last."""

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
        check_wait("reserve", wait_ms)
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
        given = members_of(
            "commit",
            namespace=namespace,
            key=key,
            token=token,
            outcome=outcome,
            ttl_ms=ttl_ms,
            events=_announced(events),
        )
        return only(Committed, await self._send(Flight("commit", given), timeout_ms))

    async def release(
        self, namespace: str, key: str, token: int, *, reason: str | None = None, timeout_ms: int | None = None
    ) -> Released:
        """The effect did not happen: free the key. Raises: StaleTokenError, AlreadyCommittedError, UnknownKeyError."""
        given = members_of("release", namespace=namespace, key=key, token=token, reason=reason)
        return only(Released, await self._send(Flight("release", given), timeout_ms))

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
        given = members_of("extend", namespace=namespace, key=key, token=token, lease_ms=lease_ms)
        return only(Extended, await self._send(Flight("extend", given), timeout_ms))

    async def doubt(
        self, namespace: str, key: str, token: int, *, reason: str | None = None, timeout_ms: int | None = None
    ) -> Doubted:
        """Nobody knows whether the effect happened. Raises as ``release`` does."""
        given = members_of("doubt", namespace=namespace, key=key, token=token, reason=reason)
        return only(Doubted, await self._send(Flight("doubt", given), timeout_ms))

    # ----------------------------------------------------------------------------------- asking the server, and batches
    async def policy(self, namespace: str, *, timeout_ms: int | None = None) -> NamespacePolicy:
        """The published settings of a namespace; the client remembers their ``on_unavailable``."""
        found = policy_of(await self._ask(Flight("policy", members_of("policy", namespace=namespace)), timeout_ms))
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
        _check_ops(ops)
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
        return acquisition(method, members_of(method, **given))

    async def _acquire(self, asked: Acquisition, wait_ms: int, timeout_ms: int | None) -> Reserved | Completed:
        """One reserve, without any care for what becomes of it."""
        answer = result_of(asked.method, await self._ask(asked.sending(wait_ms), timeout_ms))
        assert isinstance(answer, (Reserved, Completed))
        return answer

    def _give_back(self, asked: Acquisition) -> None:
        if asked.own and asked.flight.may_have_acted:
            self._settling().give_back(asked)


def _announced(events: Sequence[NewEvent]) -> list[dict[str, Any]] | None:
    for one in events:
        if not isinstance(one, NewEvent):
            raise TypeError(f"events are what event() makes, and {type(one).__name__} is none")
    return [content_members(one) for one in events] or None


def _check_ops(ops: object) -> None:
    if not isinstance(ops, Sequence) or isinstance(ops, str | bytes):
        raise TypeError(f"ops is a sequence of calls, not {type(ops).__name__}")
    for op in ops:
        if not isinstance(op, Mapping):
            raise TypeError(f"ops are mappings of the members of a call, and {type(op).__name__} is none")


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
