"""One request through a route: reserved, forwarded, and ended by the route's verdict. Or passed on as it is.

The order of the lines in ``_carry_out`` is the promise: the shard knows the end before the client sees the end of its
answer, and nothing in here depends on the client's still being there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, assert_never

import trio

from idemactor.core.commands import Commit, Doubt, Reserve
from idemactor.core.ids import uuid7
from idemactor.core.keys import Identity
from idemactor.core.limits import REASON_CHARS_MAX
from idemactor.core.order_ids import (
    BASE36,
    binance_client_order_id,
    bybit_order_link_id,
    client_order_id,
)
from idemactor.core.policy import OnUnavailable, Policy
from idemactor.core.record import Outcome
from idemactor.core.replies import Completed, Overloaded, Reserved, Unavailable
from idemactor.gateway.proxy import answers, headers
from idemactor.gateway.proxy.call import Lost, NotSent, Outgoing
from idemactor.gateway.proxy.client_side import ClientAnswer
from idemactor.gateway.proxy.desk import Caller, Desk, Ending, Lease, LeaseKeeper, given_back, new_request_id
from idemactor.gateway.proxy.forward import Arrived, Forwarder, TimedOut
from idemactor.gateway.proxy.headers import Pairs, Peer
from idemactor.gateway.proxy.routes import OrderIdForm, Route
from idemactor.gateway.proxy.verdict import READ_BYTES_MAX, Verdict, reads_body, verdict_of
from idemactor.gateway.request import RawRequest
from idemactor.gateway.resolve import Resolved
from idemactor.gateway.source import Answers
from idemactor.observability.logs import log_event
from idemactor.observability.observer import Observer
from idemactor.server.backlog import Backlog, Hold, outcome_bytes
from idemactor.shard.mailbox import Answer
from idemactor.wire.fields import Dialect
from idemactor.wire.requests import Scope

SETTLE_PATIENCE_MS_MIN: Final = 2_000
"""How long a client waits at least for the end of its attempt to be recorded, before it gets its answer anyway."""

HOLDER: Final = "gateway"
_MS_PER_S: Final = 1_000
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""What may be sent once more where a used connection turned out to be closed (RFC 9110, section 9.2.2)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Office:
    """What every request of a route needs.

    Attributes:
        route: The route.
        told_as: How its source's senders are told.
        desk: The shards.
        keeper: Who renews leases.
        forwarder: The upstream.
        observer: Who is told.
        entropy: Random bits, ``ENTROPY_BITS`` of them.
        now_ms: The time, milliseconds since the epoch.
        backlog: What waits for clients of all doors.
    """

    route: Route
    told_as: Answers
    desk: Desk
    keeper: LeaseKeeper
    forwarder: Forwarder
    observer: Observer
    entropy: Callable[[], int]
    now_ms: Callable[[], int]
    backlog: Backlog


async def pass_on(office: Office, request: RawRequest, peer: Peer, client: ClientAnswer) -> None:
    """Send a request on that nothing protects, and its answer back."""
    outgoing = _outgoing(office, request, peer, ())
    for fresh in (False, True):
        try:
            arrived = await office.forwarder.forward(outgoing, client, 0, fresh=fresh)
        except NotSent as error:
            await client.whole(answers.not_sent(str(error)))
        except Lost as error:
            if not fresh and not client.began and request.method in SAFE_METHODS and not isinstance(error, TimedOut):
                continue
            await _broken_off(client, answers.upstream_failed(504 if isinstance(error, TimedOut) else 502, f"{error}."))
        else:
            await arrived.hand_over(client)
        return


async def _broken_off(client: ClientAnswer, otherwise: answers.Whole) -> None:
    """An answer that did not come whole: what was begun is cut, else the client is told."""
    if client.began:
        client.abort()
    else:
        await client.whole(otherwise)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One protected request.

    Attributes:
        office: Its route, and who works for it.
        request: As it came.
        resolved: Its key.
        scope: Whose key that is, and the policy.
        peer: Who sent it.
        client: Where its answer goes.
        meanwhile: Waits for something while the client is watched (see ``Conversation``).
    """

    office: Office
    request: RawRequest
    resolved: Resolved
    scope: Scope
    peer: Peer
    client: ClientAnswer
    meanwhile: Callable[[Callable[[], Awaitable[Answer]], Callable[[], None]], Awaitable[Answer | None]]

    @property
    def _policy(self) -> Policy:
        return self.scope.policy

    async def run(self) -> None:
        """Reserve; forward and commit, replay, or refuse."""
        command = self._reserve_command()
        is_open = self._policy.on_unavailable is OnUnavailable.OPEN
        answer = await self._asked(command, keep=is_open)
        if answer is None:
            self.client.abort()
            return
        self.office.observer.gateway_answered(self.scope.namespace, type(answer).__name__)
        match answer:
            case Reserved():
                await self._carry_out(command, answer)
            case Completed() if not answer.rejected:
                await self._replay(answer)
            case Overloaded() | Unavailable() if is_open and not self.office.desk.closing:
                await self._go_unprotected(command)
            case _:
                await self.client.whole(answers.refusal(answer, command, self.office.told_as))

    async def _replay(self, answer: Completed) -> None:
        """Tell what was done; without the stored answer where those that wait for clients take all the memory."""
        backlog = self.office.backlog
        told: Answer = answer
        if backlog.full:
            [(_, told)] = backlog.spared([(None, answer)])
        assert isinstance(told, Completed)
        hold = Hold(backlog, Dialect.MSGPACK)
        hold.add(outcome_bytes(told))
        try:
            await self.client.whole(answers.replay(told, self.office.told_as))
        finally:
            hold.abandon()

    async def _asked(self, command: Reserve, *, keep: bool) -> Answer | None:
        """None: the client left while it waited."""
        desk, patience_ms, caller = self.office.desk, self._policy.unavailable_after_ms, Caller()

        async def ask() -> Answer:
            return await desk.reserve(command, patience_ms, keep=keep, caller=caller, request=self.client.traced)

        # Only a caller that waits is watched: to all others it is the same whether they are still there.
        answer = await (self.meanwhile(ask, caller.hang_up) if command.wait_ms else ask())
        # A shard sends away whoever left, and does not look at the key for that.
        if caller.hung_up and (answer is None or isinstance(answer, Overloaded | Unavailable)):
            return await desk.look(command, patience_ms)
        return answer

    def _reserve_command(self) -> Reserve:
        resolved, scope = self.resolved, self.scope
        identity = Identity(scope.tenant, scope.namespace, resolved.key)
        window_ms, ttl_ms = resolved.memory(scope.policy.ttl_ms)
        if scope.watch is not None:
            scope.watch("reserve", identity, {"source": resolved.source, "request": self.request})
        return Reserve(
            identity,
            request_id=new_request_id(),
            fingerprint=resolved.fingerprint,
            ttl_ms=ttl_ms,
            window_ms=window_ms,
            wait_ms=self.office.route.wait_ms,
            holder=HOLDER,
        )

    # -------------------------------------------------------------------------------------------------------- protected

    async def _carry_out(self, command: Reserve, grant: Reserved) -> None:
        lease = self._lease(command.identity, grant)
        self.office.keeper.hold(lease)
        try:
            marks: Pairs = ((headers.ATTEMPT_HEADER, str(grant.attempt)),)
            if grant.takeover:
                marks = (*marks, headers.TAKEOVER_MARK)
            arrived = await self._send(grant.operation_id, marks, lease=lease)
            verdict, ending = self._ended(arrived, command.identity, grant)
            self.office.observer.gateway_settled(self.scope.namespace, verdict.value)
            patience_ms = max(SETTLE_PATIENCE_MS_MIN, self._policy.unavailable_after_ms)
            await self.office.desk.settle(ending, patience_ms, self.client.traced)
        finally:
            self.office.keeper.drop(lease)
        await self._hand_over(arrived, grant.operation_id)

    def _lease(self, identity: Identity, grant: Reserved) -> Lease:
        now_ms = self.office.now_ms
        left_ms = grant.reserved_at + self._policy.lease_total_max_ms - now_ms()
        lasts_until = trio.current_time() + left_ms / _MS_PER_S
        return Lease(identity, grant.token, self._policy.lease_ms, grant.lease_expires_at, lasts_until, now_ms)

    async def _send(
        self, operation_id: str, marks: Pairs, answer_marks: Pairs = (), lease: Lease | None = None
    ) -> Arrived | NotSent | Lost:
        keep_bytes = self._policy.outcome_max_bytes
        if self.office.route.success is not None:
            keep_bytes = max(keep_bytes, READ_BYTES_MAX)
        try:
            outgoing = self._made(operation_id, marks)
            return await self.office.forwarder.forward(outgoing, self.client, keep_bytes, answer_marks, lease=lease)
        except (NotSent, Lost) as error:
            return error
        except Exception as error:  # What breaks after the first byte is Lost already: the key is not kept for a bug.
            log_event(_log, logging.ERROR, "gateway_request_broke", error)
            return NotSent("the request could not be made")

    def _made(self, operation_id: str, marks: Pairs) -> Outgoing:
        route = self.office.route
        own = (*marks, (route.operation_header, order_id(route, operation_id)))
        request = replace(self.request, headers=headers.with_key(self.request.headers, self.resolved.key, operation_id))
        return _outgoing(self.office, request, self.peer, own)

    def _ended(self, arrived: Arrived | NotSent | Lost, identity: Identity, grant: Reserved) -> tuple[Verdict, Ending]:
        match arrived:
            case NotSent():
                return Verdict.NOT_EXECUTED, given_back(identity, grant, str(arrived)[:REASON_CHARS_MAX])
            case Lost():
                return Verdict.IN_DOUBT, Doubt(identity, grant.token, str(arrived)[:REASON_CHARS_MAX])
            case Arrived():
                return self._judged(arrived, identity, grant)
            case _:
                assert_never(arrived)

    def _judged(self, arrived: Arrived, identity: Identity, grant: Reserved) -> tuple[Verdict, Ending]:
        route, head = self.office.route, arrived.head
        body = arrived.body if arrived.body is None or len(arrived.body) <= READ_BYTES_MAX else None
        verdict = verdict_of(route, head.status, head.headers, body)
        commit = Commit(identity, grant.token, self._outcome(arrived))
        match verdict:
            case Verdict.SUCCESS:
                return verdict, commit
            case Verdict.FAILURE if route.store_failures:
                return verdict, commit
            case Verdict.FAILURE | Verdict.NOT_EXECUTED:
                return verdict, given_back(identity, grant, f"the upstream answered {head.status}")
            case Verdict.IN_DOUBT:
                unread = " and did not say whether it was done" if reads_body(route, head.status) else ""
                return verdict, Doubt(identity, grant.token, f"the upstream answered {head.status}{unread}")
            case _:
                assert_never(verdict)

    def _outcome(self, arrived: Arrived) -> Outcome:
        head, body = arrived.head, arrived.body
        return answers.stored(head.status, headers.replayable(head.headers, self.office.route.replay_headers), body)

    async def _hand_over(self, arrived: Arrived | NotSent | Lost, operation_id: str) -> None:
        match arrived:
            case NotSent():
                await self.client.whole(answers.not_sent(str(arrived)))
            case Lost():
                status = self.office.told_as.in_doubt
                await _broken_off(self.client, answers.in_doubt(status, str(arrived), operation_id))
            case Arrived():
                await arrived.hand_over(self.client)
            case _:
                assert_never(arrived)

    # ------------------------------------------------------------------------------------------------------ unprotected

    async def _go_unprotected(self, command: Reserve) -> None:
        """No shard answers, and the namespace wants to go on all the same: marked, counted, and reported later."""
        namespace = self.scope.namespace
        self.office.observer.gateway_unprotected(namespace)
        log_event(_log, logging.WARNING, "gateway_unprotected", namespace=namespace)
        operation_id = uuid7(self.office.now_ms(), self.office.entropy())
        arrived = await self._send(operation_id, (headers.UNPROTECTED_MARK,), (headers.UNPROTECTED_MARK,))

        def ending_of(token: int) -> Ending:
            grant = Reserved(command.identity.key, token, 1, operation_id, 0, 0, repeated=False)
            return self._ended(arrived, command.identity, grant)[1]

        self.office.desk.report(command, ending_of)
        await self._hand_over(arrived, operation_id)


def _outgoing(office: Office, request: RawRequest, peer: Peer, own: Pairs) -> Outgoing:
    """The request as the upstream gets it; what it says of itself with our authority is ours alone."""
    route = office.route
    pairs = headers.end_to_end(headers.without_decisions(request.headers, route.operation_header))
    # What is ours is added to what is left, so that no Connection field takes it out.
    pairs = headers.without(headers.forwarded(pairs, peer), "content-length", "expect")
    if route.success is not None and own:
        pairs = headers.readable(pairs)
    hosts = [pair for pair in pairs if pair[0].lower() == "host"]
    if not route.preserve_host or not hosts:
        pairs = (("Host", office.forwarder.upstream.authority), *headers.without(pairs, "host"))
    return Outgoing(request.method, request.path, (*pairs, *own), request.body)


def order_id(route: Route, operation_id: str) -> str:
    """The operation id in the form that the route's upstream takes."""
    prefix = route.operation_prefix
    match route.operation_form:
        case OrderIdForm.UUID:
            return prefix + operation_id
        case OrderIdForm.BASE62:
            return client_order_id(operation_id, prefix=prefix)
        case OrderIdForm.BASE36:
            return client_order_id(operation_id, prefix=prefix, alphabet=BASE36)
        case OrderIdForm.BINANCE:
            return binance_client_order_id(operation_id, prefix=prefix)
        case OrderIdForm.BYBIT:
            return bybit_order_link_id(operation_id, prefix=prefix)
        case _:
            assert_never(route.operation_form)
