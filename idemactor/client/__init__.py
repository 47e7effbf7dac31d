"""The client of idemactor, for trio and asyncio; ``idemactor.client.sync`` has the same for programs without either.

async with Client("127.0.0.1:8788") as client:
    async with client.hold("trade", key, payload=order) as hold:
        if hold.completed:
            return hold.outcome
        hold.begin_effect()
        answer = await exchange.place(order, client_order_id=hold.operation_id)
        hold.set_outcome(status=200, body=answer)
"""

from __future__ import annotations

from idemactor.client.client import Client
from idemactor.client.clock import ManualClock
from idemactor.client.commands import Op
from idemactor.client.dispatching import EntryRef, Operation, OutboxEntry, event
from idemactor.client.errors import (
    AlreadyCommittedError,
    BadSignature,
    ClientClosed,
    CommitUnacknowledged,
    DuplicateError,
    EndingUnacknowledged,
    Forbidden,
    ForkedError,
    IdemactorClientError,
    InDoubtError,
    InFlightError,
    InvalidRequest,
    LeaseLost,
    MismatchError,
    NotFound,
    OutcomeMissing,
    OutOfService,
    Overloaded,
    ProtocolViolation,
    QuotaExceeded,
    Refused,
    ReleasedError,
    ServerNotTrusted,
    StaleTokenError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UncancellableError,
    UnknownKeyError,
    UnknownNamespace,
    Unreachable,
    UnsettledError,
)
from idemactor.client.hold import Hold
from idemactor.client.once import current_hold
from idemactor.client.order_ids import binance_client_order_id, bybit_order_link_id, client_order_id
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
)
from idemactor.client.settle import Report
from idemactor.client.stuck import Stuck, StuckList, Unfetched, Why
from idemactor.core.delivery import NewEvent, OperationState
from idemactor.core.policy import Policy

__all__ = [
    "Accepted",
    "Acked",
    "Acknowledged",
    "AlreadyCommittedError",
    "BadSignature",
    "Cancelled",
    "Client",
    "ClientClosed",
    "CommitUnacknowledged",
    "Committed",
    "Completed",
    "Dispatched",
    "Doubted",
    "DuplicateError",
    "EndingUnacknowledged",
    "EntryRef",
    "Extended",
    "Forbidden",
    "Forgotten",
    "ForkedError",
    "Hold",
    "IdemactorClientError",
    "InDoubtError",
    "InFlightError",
    "Incident",
    "InvalidRequest",
    "KeyRecord",
    "LeaseLost",
    "ManualClock",
    "MismatchError",
    "NamespacePolicy",
    "NewEvent",
    "NotFound",
    "Op",
    "Operation",
    "OperationState",
    "OutOfService",
    "OutboxEntry",
    "Outcome",
    "OutcomeMissing",
    "Overloaded",
    "Policy",
    "Postponed",
    "ProtocolViolation",
    "QuotaExceeded",
    "Refused",
    "Released",
    "ReleasedError",
    "Report",
    "Reserved",
    "Resolved",
    "ServerNotTrusted",
    "StaleTokenError",
    "Stuck",
    "StuckList",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "UncancellableError",
    "Unfetched",
    "UnknownKeyError",
    "UnknownNamespace",
    "Unreachable",
    "UnsettledError",
    "Why",
    "binance_client_order_id",
    "bybit_order_link_id",
    "client_order_id",
    "current_hold",
    "event",
]
