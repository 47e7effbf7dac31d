"""Which shard a command belongs to, and the nursery that its shards run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import trio

from idemactor.core.commands import Accept, Dispatch, Reserve
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.outbox import LineKey
from idemactor.core.queries import Moved, Query, Turn
from idemactor.core.replies import Overloaded
from idemactor.observability.observer import Observer
from idemactor.shard.company import Company
from idemactor.shard.mailbox import OVERLOADED_RETRY_MS, Answer, Envelope, Sink, tenant_of


class _Nobody:
    """The sink of what nobody waits for."""

    closed = False

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """It was heard, or not: whoever waits looks again later all the same."""


_NOBODY: Final = _Nobody()


class Place(Protocol):
    """Where the commands of one shard go: the shard, or the way to the process that owns it."""

    number: int

    def submit(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Take commands, in order; returns those that there was no room for."""

    @property
    def queue_depth(self) -> int:
        """Commands that wait in the mailbox."""

    @property
    def quarantined(self) -> bool:
        """Whether it cannot be read, or not be reached."""

    @property
    def in_memory(self) -> bool:
        """Whether it is loaded."""

    @property
    def reachable(self) -> bool:
        """Whether commands get there at all."""

    def stop_waiting(self) -> None:
        """Answer everyone who waits, and let nobody wait from here on."""

    def close(self) -> None:
        """Answer what was taken, and take nothing new."""

    async def run(self) -> None:
        """Serve until ``close``."""


class Router:
    """Takes commands from the doors and puts them into the mailboxes of the shards that own their keys.

    Args:
        shards: All of them, by number.
        observer: Is told of what was refused.
        company: Is told who asks; None: nobody wants to know.
    """

    def __init__(self, shards: Sequence[Place], observer: Observer, company: Company | None = None) -> None:
        self.shards = tuple(shards)
        self.company = company or Company()
        self._observer = observer
        self._closing = False
        self._settling_only = False

    def route(self, envelopes: Sequence[Envelope]) -> Mapping[str, int]:
        """Send commands to their shards, in order. What finds no room is answered ``overloaded`` before this returns.

        Commands of one key end up in one mailbox in the order in which they were given. A query goes nowhere by
        itself: see ``ask``.

        Returns:
            How many found no room, by tenant.
        """
        if self._closing:
            self._overloaded(envelopes)
            return {}
        count, company = len(self.shards), self.company
        by_shard: dict[int, list[Envelope]] = {}
        for envelope in envelopes:
            command = envelope.command
            assert not isinstance(command, Query)
            if command.identity.tenant != company.latest:
                company.heard(command.identity.tenant)
            if self._settling_only and isinstance(command, Reserve | Accept | Dispatch):
                self._overloaded([envelope])
                continue
            shard = shard_of(identity_hash(command.identity), count)
            by_shard.setdefault(shard, []).append(envelope)
        refused: dict[str, int] = {}
        for shard, batch in by_shard.items():
            for envelope in self._submit(shard, batch):
                tenant = tenant_of(envelope)
                refused[tenant] = refused.get(tenant, 0) + 1
        return refused

    def ask(self, shard: int, envelope: Envelope) -> None:
        """Send a query to one shard."""
        tenant = tenant_of(envelope)
        if tenant and tenant != self.company.latest:
            self.company.heard(tenant)
        if self._closing:
            self._overloaded([envelope])
        else:
            self._submit(shard, [envelope])

    def lines_moved(self, shard: int, lines: Sequence[LineKey]) -> None:
        """Tell all other shards that the head of these lines ended in this one."""
        turns: dict[str, list[Turn]] = {}
        for tenant, namespace, kind, order_key in lines:
            turns.setdefault(namespace, []).append(Turn(tenant, kind, order_key, 0))
        for other in self.shards:
            if other.number != shard:
                for namespace, moved in turns.items():
                    self.ask(other.number, Envelope(Moved(namespace, tuple(moved)), _NOBODY, None))

    def settle_only(self) -> None:
        """Grant nothing any more, and let nobody wait: what is under way may still be told to have ended."""
        self._settling_only = True
        for shard in self.shards:
            shard.stop_waiting()

    def is_gone(self, identity: Identity) -> bool:
        """Whether nobody will answer for a key any more: its owner died, and a server that stops starts none again."""
        return self._settling_only and not self.shards[shard_of(identity_hash(identity), len(self.shards))].reachable

    def close(self) -> None:
        """Take nothing new; what was taken is answered, and everyone who waits is answered at once."""
        self._closing = True
        for shard in self.shards:
            shard.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the shards until ``close``, each in a task of its own."""
        async with trio.open_nursery() as nursery:
            for shard in self.shards:
                nursery.start_soon(shard.run, name=f"shard {shard.number}")
            task_status.started()

    def _submit(self, shard: int, batch: list[Envelope]) -> Sequence[Envelope]:
        refused = self.shards[shard].submit(batch)
        if refused:
            self._overloaded(refused)
        return refused

    def _overloaded(self, envelopes: Sequence[Envelope]) -> None:
        self._observer.overloaded(len(envelopes))
        by_sink: dict[Sink, list[tuple[object, Answer]]] = {}
        for envelope in envelopes:
            by_sink.setdefault(envelope.sink, []).append((envelope.tag, Overloaded(OVERLOADED_RETRY_MS)))
        for sink, answers in by_sink.items():
            sink.deliver(answers)
