"""What the client raises. Every exception carries what its caller needs to decide what to do next.

``Refused`` is the server's no: asking again changes nothing by itself. ``OutOfService`` means that nobody could be
asked, or that nothing is known of what became of the call; it is the only kind for which ``on_unavailable`` may let a
caller go on. Everything else is about a hold that did not end well, or about wrong use.
"""

from __future__ import annotations

from typing import Any

from idemactor.core.record import Outcome
from idemactor.errors import IdemactorError


class IdemactorClientError(IdemactorError):
    """The base of everything that the client raises on purpose. Its kinds survive pickle, and so process pools."""

    def __reduce__(self) -> tuple[Any, ...]:
        # What pickle does by itself is to call the class with the text alone, which most of these do not take.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[IdemactorClientError], arguments: tuple[Any, ...]) -> IdemactorClientError:
    return kind.__new__(kind, *arguments)


class Refused(IdemactorClientError):
    """The server said no.

    Attributes:
        code: The server's word for it, ``IDEMPOTENCY_...``.
        detail: One sentence for people; it quotes no key and no payload.
    """

    def __init__(self, code: str, detail: str) -> None:
        # Over RPC a refusal of the state table comes without words.
        detail = detail or (type(self).__doc__ or "").partition(";")[0].partition(". ")[0].strip().rstrip(".")
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class InFlightError(Refused):
    """Somebody else holds the key; times in milliseconds since the epoch, ``retry_after_ms`` from now.

    Without ``lease_expires_at`` it is dispatched, and waits to be delivered.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        attempt: int,
        holder: str | None,
        reserved_at: int,
        lease_expires_at: int | None,
        retry_after_ms: int,
    ) -> None:
        super().__init__(code, detail)
        self.attempt = attempt
        self.holder = holder
        self.reserved_at = reserved_at
        self.lease_expires_at = lease_expires_at
        self.retry_after_ms = retry_after_ms


class InDoubtError(Refused):
    """Nobody knows whether the effect of an earlier attempt happened; somebody has to resolve it."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        attempt: int | None = None,
        operation_id: str | None = None,
        holder: str | None = None,
        reserved_at: int | None = None,
        lease_expires_at: int | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(code, detail)
        self.attempt = attempt
        self.operation_id = operation_id
        self.holder = holder
        self.reserved_at = reserved_at
        self.lease_expires_at = lease_expires_at
        self.reason = reason


class MismatchError(Refused):
    """The key stands for another payload. Nothing of the stored one is told."""


class DuplicateError(Refused):
    """It was done before, and the namespace or the call wants that refused; times in ms since the epoch."""

    def __init__(
        self, code: str, detail: str, *, operation_id: str | None, committed_at: int | None, expires_at: int | None
    ) -> None:
        super().__init__(code, detail)
        self.operation_id = operation_id
        self.committed_at = committed_at
        self.expires_at = expires_at


class ReleasedError(Refused):
    """A late repeat of an acquisition that was released; a new one needs a new ``request_id``."""


class StaleTokenError(Refused):
    """The token is not the latest attempt's; ``attempt`` is the present one, None where there is none."""

    def __init__(self, code: str, detail: str, *, attempt: int | None) -> None:
        super().__init__(code, detail)
        self.attempt = attempt


class AlreadyCommittedError(Refused):
    """Too late to undo: the operation is committed; times in milliseconds since the epoch."""

    def __init__(self, code: str, detail: str, *, committed_at: int | None, expires_at: int | None) -> None:
        super().__init__(code, detail)
        self.committed_at = committed_at
        self.expires_at = expires_at


class UncancellableError(Refused):
    """Something was sent, or the operation has ended: ``state`` says how it stands."""

    def __init__(self, code: str, detail: str, *, state: str | None) -> None:
        super().__init__(code, detail)
        self.state = state


class UnknownKeyError(Refused):
    """There is no record of the key."""


class UnsettledError(Refused):
    """The key is pending or in doubt and is not forgotten without ``force``."""


class NotFound(Refused):
    """There is no such thing: no such incident, no such operation."""


class InvalidRequest(Refused):
    """The call is not well formed; ``field`` names the member where the client found it out itself."""

    def __init__(self, code: str, detail: str, *, field: str | None = None) -> None:
        super().__init__(code, detail)
        self.field = field


class TooLarge(Refused):
    """The call is larger than the server takes."""


class Unauthenticated(Refused):
    """The server does not know this token. Never a reason to go on unprotected."""


class BadSignature(Refused):
    """The request that came with its source is not its sender's."""


class Forbidden(Refused):
    """The token is good, but not for this."""


class UnknownNamespace(Refused):
    """The server has no such namespace."""


class QuotaExceeded(Refused):
    """The namespace is full: a new key is refused."""


class OutOfService(IdemactorClientError):
    """Nobody could be asked, or nothing is known of what became of the call. Trying again makes sense."""


class Unavailable(OutOfService):
    """The shard of the key cannot answer."""


class Overloaded(OutOfService):
    """The server took nothing: too many wait, or it is shutting down. Or it has nothing but an outcome to tell, and no
    room for it, as in a batch that asks for very large ones: asking again, for fewer, is safe."""


class Unreachable(OutOfService):
    """No connection, or no answer in time; the cause is chained where there is one."""


class LeaseLost(IdemactorClientError):
    """The lease was lost while the body ran: another attempt may be at work.

    Attributes:
        operation_id: Of the operation whose lease it was.
        token: The fencing token, now worth nothing where somebody else took over.
        effect_begun: Whether ``begin_effect`` was called before, so that the effect may have happened.
    """

    def __init__(self, detail: str, *, operation_id: str | None, token: int | None, effect_begun: bool) -> None:
        super().__init__(detail)
        self.operation_id = operation_id
        self.token = token
        self.effect_begun = effect_begun


class EndingUnacknowledged(IdemactorClientError):
    """The body is through and asked for an ending (``give_back``, ``leave_in_doubt``), but no answer to it came.

    Nobody may have been told: until somebody is, the key is held for the rest of its lease, and then what the namespace
    says of leases that run out. The client goes on sending it while it is open, a ``give_back`` for some minutes.
    ``idemactor run`` says by this one, or by its kind ``CommitUnacknowledged``, that the key is not what it asked for.

    Attributes:
        operation_id: Of the operation.
        token: The fencing token of the attempt.
    """

    def __init__(self, detail: str, *, operation_id: str | None, token: int | None) -> None:
        super().__init__(detail)
        self.operation_id = operation_id
        self.token = token


class CommitUnacknowledged(EndingUnacknowledged):
    """The body is through, but no answer to the commit came: the key is committed or will be in doubt.

    Nothing was released, and the client goes on sending the commit for as long as it is open.

    Attributes:
        operation_id: Of the operation.
        token: The fencing token of the attempt.
        outcome: What would have been kept.
    """

    def __init__(self, *, operation_id: str | None, token: int | None, outcome: Outcome | None) -> None:
        detail = "the commit was not acknowledged: the key is committed or in doubt, and was not released"
        super().__init__(detail, operation_id=operation_id, token=token)
        self.outcome = outcome


class OutcomeMissing(IdemactorClientError):
    """The operation was done before, but what it answered was not kept (too large, or never given)."""


class ProtocolViolation(IdemactorClientError):
    """The server sent what is no answer; the connection is closed."""


class ServerNotTrusted(IdemactorClientError):
    """The server's certificate does not verify. Never a reason to go on unprotected."""


class ClientClosed(IdemactorClientError):
    """The client is not open: use it inside ``async with``."""


class ForkedError(IdemactorClientError):
    """The client was opened in another process: open one of your own after a fork."""
