"""The shard actor: one task that owns one shard's memory, file and alarms, as a Cloudflare Durable Object does.

It does not think; ``core/ledger.py`` does. Its turn is: take what is in the mailbox, look up what memory lacks, let
the ledger decide everything in order, write once, and only then hand out the answers. The order of those lines in
``_turn`` is the output gate: nothing leaves before what it depends on is durable. One turn at a time is the input
gate. A write that failed is never argued about: the callers of that batch are told ``unavailable``, memory is
dropped, and the shard reads everything anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, assert_never, cast

import trio

from idemactor.core import limits
from idemactor.core.census import Census
from idemactor.core.clock import Clock, Sequencer
from idemactor.core.commands import Command, Forget
from idemactor.core.keys import Identity
from idemactor.core.ledger import ENTRY_BYTES, Ledger, Work
from idemactor.core.policy import Policy
from idemactor.core.queries import (
    BYSTANDERS,
    QUERIES,
    Acknowledge,
    Acknowledged,
    Behind,
    Finding,
    FindOperation,
    Heads,
    Inspect,
    Inspected,
    ListIncidents,
    ListRecords,
    ListStuck,
    Moved,
    NoSuchIncident,
    Noted,
    OperationAt,
    Query,
    Take,
    Taken,
)
from idemactor.core.record import Entry
from idemactor.core.replies import Overloaded, Reply, Unavailable
from idemactor.errors import StorageError
from idemactor.observability.observer import Observer
from idemactor.shard import lookups, taking
from idemactor.shard.alarm_clock import AlarmClock
from idemactor.shard.backoff import BACKOFF_MS_MIN, Backoff
from idemactor.shard.bell import Bell
from idemactor.shard.broom import Broom
from idemactor.shard.company import Company
from idemactor.shard.mailbox import LISTINGS, OVERLOADED_RETRY_MS, Answer, Envelope, Mailbox, Sink
from idemactor.shard.tracing import TurnTrace, TurnTracer
from idemactor.storage.base import Batch, CommitResult, Engine, Opened

BATCH_COMMANDS_MAX: Final = 1_024
"""The most commands that share one transaction."""

HURRIED_SHARE: Final = 3
HURRIED_BATCH_MIN: Final = 5
"""A turn is a third of what it is else while several tenants are served, but no less than so many commands, as long as
somebody who asks for little is there beside somebody who asks for more than can be done."""

SHARED_WRITE_MS: Final = 2
SHARED_WRITES_MAX: Final = 5
"""While several tenants are served nobody may wait for a large turn of another's commands. But each turn waits until it
is written: for every so many milliseconds of the latest sync it takes as many commands again, up to so many times as
many, and so is about as long as what it waits for anyway. Not for those of the latest write: in it all other turns had
theirs, and turns would grow with each other."""

TURN_BYTES_MAX: Final = 32 * 1024 * 1024
"""How much a turn brings into memory for its commands before what is left of them waits for the next one. By the
estimate of the ledger; one piece of ``LOADED_AT_A_TIME`` may overshoot it."""

LOADED_AT_A_TIME: Final = 64
"""How many keys are looked up on disk at once: how large what is there is, is known only then."""

SWEEPS_MAX: Final = 64
SWEEPS_BUSY_MAX: Final = 32
"""The most alarms that one turn deals with, and that one does in which a few callers wait for their answers: a storm of
alarms is worked off between them, and still faster than it can have been made."""

SWEEPS_ON_THE_WAY_MAX: Final = 128
"""A turn deals with as many alarms as it has commands, though no more than these, whoever has the broom: what comes by
commands goes by alarms. If it came faster than it goes, files would fill with what has ended, and all get slower."""

SWEEP_SECONDS_MAX: Final = 0.002
"""When a step of alarm work stops early: well under the 5 ms that it may hold a shard."""

EVICT_AFTER_MS_DEFAULT: Final = 300_000
"""How long a shard is idle before it leaves memory."""

SLEEP_MS_MAX: Final = 3_600_000
"""The longest that a shard sleeps at a time."""

_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """What a shard is told: limits in commands, times in milliseconds.

    Attributes:
        batch_max: Of a turn.
        shared_batch_max: The same while several tenants are served, on a disk that takes no time.
        queue_ms: How long a command may wait behind others of its tenant.
        turn_bytes_max: How much a turn brings into memory for its commands, bytes.
    """

    mailbox_max: int = limits.MAILBOX_COMMANDS_MIN
    queue_ms: int = limits.QUEUE_MS_DEFAULT
    evict_after_ms: int = EVICT_AFTER_MS_DEFAULT
    batch_max: int = BATCH_COMMANDS_MAX
    shared_batch_max: int = BATCH_COMMANDS_MAX
    turn_bytes_max: int = TURN_BYTES_MAX


class _BatchFailed(StorageError):
    """The batch at hand is not, or perhaps not, on disk; its cause is what the engine says failed."""


class AheadError(StorageError):
    """A file that could not be read when the time was settled has been written at a later one.

    What is in it may have ended by its own time, and would be alive once more by the server's.
    """

    def __init__(self, ahead_ms: int) -> None:
        super().__init__(
            f"its latest time is {ahead_ms} ms ahead of this server's, which started while it could not be read: it is"
            " served once that time has come, or after a restart with a clock that is right"
        )


class _Fenced(Exception):
    """Somebody else owns the shard."""


@dataclass(slots=True)
class _Turn:
    """What one turn has in hand."""

    now: int
    envelopes: list[Envelope]
    queries: list[tuple[Envelope, Query]] = field(default_factory=list)
    due: list[Identity] = field(default_factory=list)
    work: Work[Envelope] = field(default_factory=Work)
    acknowledged: set[int] = field(default_factory=set)
    trace: TurnTrace | None = None
    taken: dict[int, Taken] = field(default_factory=dict)
    forgets: bool = False
    put_off: bool = False
    answered: set[int] | None = None

    def commands(self) -> list[tuple[Envelope, Command]]:
        """The commands in hand, in order; the queries are set apart."""
        self.queries = []
        commands: list[tuple[Envelope, Command]] = []
        for envelope in self.envelopes:
            command = envelope.command
            if type(command) in QUERIES:
                self.queries.append((envelope, cast("Query", command)))
            else:
                commands.append((envelope, cast("Command", command)))
        return commands

    @property
    def left(self) -> list[Envelope]:
        """What was not answered. Of commands that is all of them until the turn's write is durable, and then none."""
        if self.answered is None:
            return self.envelopes
        return [envelope for envelope, _ in self.queries if id(envelope) not in self.answered]


class Shard:
    """One shard. ``submit`` and ``close`` may be called by anyone in the loop; all else is its own task's.

    Args:
        number: From 0.
        engine: Its storage; nothing else touches it.
        policies: Settings by namespace.
        census: Key counts of the whole process.
        clock: The shard's time.
        entropy: Gives ``ids.ENTROPY_BITS`` random bits.
        observer: Sees what happens.
        settings: Limits and times.
        opened: What the engine said when it was opened; or why it could not be: it is tried again, later and later.
        broom: Shared by the shards of a process, see ``broom.py``; None: it sweeps alone.
        bell: Rung for those who wait for the outbox; shared by all shards; None: nobody does.
        sequencer: Gives places in line; shared by the shards of a process; None: it has one of its own.
        tracer: Is told of the turns; None: nobody traces.
        company: Says whether several tenants are served; None: there is only one.
    """

    def __init__(
        self,
        number: int,
        engine: Engine,
        policies: Mapping[str, Policy],
        census: Census,
        clock: Clock,
        entropy: Callable[[], int],
        observer: Observer,
        settings: ShardSettings,
        opened: Opened | StorageError,
        broom: Broom | None = None,
        bell: Bell | None = None,
        sequencer: Sequencer | None = None,
        tracer: TurnTracer | None = None,
        company: Company | None = None,
    ) -> None:
        self.number = number
        self.quarantined = False
        self.turns = 0
        self._engine = engine
        self._policies = policies
        self._census = census
        self._clock = clock
        self._entropy = entropy
        self._observer = observer
        self._tracer = tracer
        self._settings = settings
        self._bell = bell or Bell()
        self._company = company or Company()
        self._sequencer = sequencer or Sequencer(clock.now_us)
        self._mailbox = Mailbox(settings.mailbox_max, settings.queue_ms)
        self._last_token = 0
        self._ledger: Ledger[Envelope] | None = None
        self._alarms = AlarmClock(number, engine, observer, broom or Broom(), self._mailbox.ring)
        self._reload_backoff = Backoff()
        self._spoilt = False
        self._unread = isinstance(opened, StorageError)
        self._fenced = False
        self._closing = False
        self._impatient = False
        self._put_off = False
        # Where less fits into a turn than the smallest of so many keys, no more are worth a look at once.
        self._piece = max(1, min(LOADED_AT_A_TIME, settings.turn_bytes_max // ENTRY_BYTES))
        self._used_at = clock.now_ms()
        self._asleep = Inspected((), None, 0, 0)
        if isinstance(opened, StorageError):
            self._quarantine(self._used_at, opened)
        else:
            self._ledger = self._read(opened)

    # ------------------------------------------------------------------------------------------------ for the others

    def submit(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Put commands into the mailbox, in order; returns those that there was no room for."""
        refused = self._mailbox.put(envelopes)
        if self._mailbox.pressing:
            self._company.press(self.number)
        return refused

    @property
    def queue_depth(self) -> int:
        """Commands that wait in the mailbox."""
        return len(self._mailbox)

    @property
    def in_memory(self) -> bool:
        """Whether the shard is loaded."""
        return self._ledger is not None

    @property
    def reachable(self) -> bool:
        """Always: it is here."""
        return True

    def ring(self) -> None:
        """Go round once, though there may be nothing to do: ``turns`` shows that it has."""
        self._mailbox.ring()

    def stop_waiting(self) -> None:
        """Answer everyone who waits, now and from now on, and go on serving."""
        self._impatient = True
        self._mailbox.ring()

    def close(self) -> None:
        """Answer everything that is in the mailbox and everyone who waits, then let ``run`` return."""
        self._closing = self._impatient = True
        self._mailbox.ring()

    # --------------------------------------------------------------------------------------------------- its own task

    async def run(self) -> None:
        """Serve until ``close``."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._mailbox.run_timer)
                while not self._closing or len(self._mailbox) or self._waiting():
                    await self._mailbox.wait(trio.current_time() + self._sleep_ms() / _MS_PER_S)
                    self._company.glance()
                    if self._company.pressed and not self._mailbox.pressing:
                        await self._company.give_way()
                    await self._turn()
                    self._company.glance()
                    if not self._mailbox.pressing:
                        self._company.relax(self.number)
                    self._alarms.step_over()
                    self.turns += 1
                nursery.cancel_scope.cancel()
        finally:
            self._ledger = None
            self._company.relax(self.number)
            self._alarms.stop()
            with trio.CancelScope(shield=True):
                await self._let_go()

    async def _let_go(self) -> None:
        try:
            await self._engine.close()
        except Exception as error:  # All that was told is on disk, and the other shards have not finished yet.
            self._observer.batch_failed(self.number, 0, error)

    def _waiting(self) -> int:
        return self._ledger.waiting if self._ledger else 0

    def _sleep_ms(self) -> int:
        """Until the one armed alarm: the earliest of everything that time may bring."""
        if self._closing or self._put_off:
            return 0
        now = self._clock.now_ms()
        if self._ledger is not None and not self._ledger.outbox.recalled:
            return 0
        times = [now + SLEEP_MS_MAX]
        if self._ledger is None and self._spoilt:
            times.append(self._reload_backoff.until_ms if not self._fenced else times[0])
        else:
            times.extend(self._wake_times(now))
        return max(0, min(times) - now)

    def _wake_times(self, now: int) -> list[int]:
        times: list[int] = []
        alarm_at = self._alarms.next_at(now)
        if alarm_at is not None:
            times.append(alarm_at)
        if self._ledger is not None:
            timeout_at = self._ledger.next_timeout
            if timeout_at is not None:
                times.append(timeout_at)
            elif not self._ledger.waiting:
                times.append(self._used_at + self._settings.evict_after_ms)
        return times

    async def _turn(self) -> None:
        late = self._mailbox.take_late()
        if late:
            self._observer.overloaded(len(late))
            self._hand_out((envelope, Overloaded(OVERLOADED_RETRY_MS)) for envelope in late)
        turn = _Turn(self._clock.now_ms(), self._mailbox.take(self._batch_max()))
        turn.put_off, self._put_off = self._put_off, False
        ledger = self._ledger or await self._bring_back(turn)
        if ledger is None:
            return
        if self._tracer is not None:
            turn.trace = self._tracer.turn(self.number, turn.envelopes)
        if not await self._recall(ledger, turn):
            return
        try:
            await self._decide(ledger, turn)
            if turn.trace is not None:
                turn.trace.decided()
            await self._write(ledger, turn)
            self._answer_commands(turn)
            await self._answer_queries(ledger, turn)
        except _Fenced:
            self._stop_for_good(turn)
        except Exception as error:  # Whatever broke: no answer may leave, and memory is not to be trusted.
            self._drop(turn, error)
        else:
            self._bell.announce(self.number, ledger.outbox)
            await self._rest(ledger, turn)

    def _batch_max(self) -> int:
        """The most commands of this turn."""
        if not self._company.shared:
            return self._settings.batch_max
        writes = min(1 + int(self._engine.last_sync_s * _MS_PER_S / SHARED_WRITE_MS), SHARED_WRITES_MAX)
        piece = self._settings.shared_batch_max
        if self._company.hurried:
            piece = max(min(HURRIED_BATCH_MIN, piece), piece // HURRIED_SHARE)
        return min(piece * writes, self._settings.batch_max)

    async def _recall(self, ledger: Ledger[Envelope], turn: _Turn) -> bool:
        """Bring the outbox into memory: a part of opening, and what fails there is tried again later and later."""
        if ledger.outbox.recalled:
            return True
        try:
            await taking.recall(self._engine, ledger, self._sequencer)
        except Exception as error:  # As with a file that cannot be read.
            # It may have taken turns before it failed, and what those answered stays answered.
            ledger.begin(turn.now)
            self._quarantine(turn.now, error)
            self._drop(turn, error)
            return False
        return True

    # --------------------------------------------------------------------------------------------- one turn, in order

    async def _decide(self, ledger: Ledger[Envelope], turn: _Turn) -> None:
        """Bring into memory what is asked about, then let the ledger decide it all in order."""
        # For the whole turn: who is told to go without the key being in memory would be told that nobody holds it.
        impatient = self._impatient
        ledger.begin(turn.now)
        commands = turn.commands()
        waited_for = ledger.timing_out(limits.TOKEN_MAX if impatient else turn.now) if ledger.waiting else []
        on_the_way = min(len(commands), SWEEPS_ON_THE_WAY_MAX)
        limit = max(on_the_way, SWEEPS_BUSY_MAX if turn.envelopes else SWEEPS_MAX)
        if self._in_a_hurry(turn):
            limit, self._put_off = 0, True
        turn.due = await self._alarms.take_due(turn.now, limit, on_the_way)
        if await self._load(ledger, commands, waited_for, turn):
            commands = turn.commands()
        await taking.look_up_fetched(self._engine, ledger, (command for _, command in commands))
        if turn.due:
            self._sweep(ledger, turn)
        for envelope, command in commands:
            ledger.apply(envelope, command)
        for envelope, query in turn.queries:
            if type(query) is Take:
                turn.taken[id(envelope)] = await taking.take(self._engine, ledger, query, turn.now)
        if ledger.waiting:
            ledger.time_out(everyone=impatient)

    async def _load(
        self,
        ledger: Ledger[Envelope],
        commands: Sequence[tuple[Envelope, Command]],
        waited_for: Sequence[Identity],
        turn: _Turn,
    ) -> bool:
        """Bring into memory what is missing of it; whether the turn was cut because that is too much for one.

        Alarms and those who have waited long enough are not put off by how large what callers ask for is.
        """
        identities = [command.identity for _, command in commands]
        wanted = ledger.missing([*identities, *waited_for] if waited_for else identities)
        if not wanted and not turn.due:
            return False
        later: list[Identity] = []
        if len(wanted) > self._piece:
            in_order = [identity for identity in dict.fromkeys(identities) if identity in wanted]
            wanted = {*in_order[: self._piece], *ledger.missing(waited_for)}
            later = [identity for identity in in_order[self._piece :] if identity not in wanted]
        loaded = ledger.absorb(await self._load_with_alarms(ledger, wanted, turn))
        for start in range(0, len(later), self._piece):
            if loaded > self._settings.turn_bytes_max:
                self._cut(turn, set(later[start:]))
                return True
            loaded += ledger.absorb(await self._engine.load(later[start : start + self._piece]))
        return False

    async def _load_with_alarms(
        self, ledger: Ledger[Envelope], wanted: set[Identity], turn: _Turn
    ) -> Mapping[Identity, Entry]:
        if turn.due:
            try:
                return await self._engine.load(list(wanted | ledger.missing(turn.due)))
            except StorageError as error:
                # Alarms never stop the shard from serving: what callers asked about is tried without them.
                self._put_off_alarms(turn, error)
        return await self._engine.load(list(wanted)) if wanted else {}

    def _cut(self, turn: _Turn, not_loaded: Set[Identity]) -> None:
        """What comes from the first command on whose key is not in memory waits for the next turn, before all else."""
        at = next(
            number
            for number, envelope in enumerate(turn.envelopes)
            if isinstance(envelope.command, Command) and envelope.command.identity in not_loaded
        )
        turn.envelopes, put_back = turn.envelopes[:at], turn.envelopes[at:]
        self._mailbox.put_back(put_back)
        if self._mailbox.pressing:
            self._company.press(self.number)
        if turn.trace is not None:
            turn.trace.put_back(put_back)

    def _sweep(self, ledger: Ledger[Envelope], turn: _Turn) -> None:
        """A bounded step of alarm work."""
        started = time.perf_counter()
        done = 0
        failed: Exception | None = None
        for done, identity in enumerate(turn.due, 1):
            try:
                ledger.sweep(identity)
            except Exception as error:  # One key that cannot be swept must not hold up the others.
                failed = error
            if done % 16 == 0 and time.perf_counter() - started > SWEEP_SECONDS_MAX:
                break
        self._alarms.give_back(turn.due[done:], turn.now)
        self._observer.swept(self.number, done, time.perf_counter() - started)
        if failed is not None:
            self._put_off_alarms(turn, failed)

    def _put_off_alarms(self, turn: _Turn, error: Exception) -> None:
        turn.due = []
        self._alarms.put_off(turn.now, error)

    async def _write(self, ledger: Ledger[Envelope], turn: _Turn) -> None:
        """The one write of the turn. Returns only when everything that was decided is durable."""
        work = turn.work = ledger.finish()
        turn.forgets = bool(work.deletes or work.emptied) and any(type(e.command) is Forget for e in turn.envelopes)
        batch = Batch(
            now_ms=max(turn.now, work.covers_ms),
            last_token=ledger.last_token,
            puts=list(work.puts.values()),
            deletes=list(work.deletes.values()),
            incidents=work.incidents,
            acknowledged=await self._acknowledge(ledger, turn) if turn.queries else [],
            tallies=work.tallies,
            intents=work.intents,
            undelivered=work.undelivered,
            events=work.events,
            acked=work.acked,
            emptied=work.emptied,
            forgets=turn.forgets,
        )
        started = time.perf_counter()
        result = await (self._engine.confirm() if batch.empty else self._engine.commit(batch))
        match result:
            case CommitResult.OK:
                pass
            case CommitResult.FENCED:
                raise _Fenced
            case CommitResult.FAILED | CommitResult.UNKNOWN:
                raise _BatchFailed(result.value) from self._engine.last_error
            case _:
                assert_never(result)
        if turn.trace is not None:
            turn.trace.written(len(turn.envelopes), None if batch.empty else self._engine.last_sync_s)
        if not batch.empty:
            seconds = time.perf_counter() - started
            self._observer.batch_written(self.number, len(turn.envelopes), seconds, self._engine.last_sync_s)
            self._alarms.note(work)
        if turn.due:
            self._alarms.went_well()

    async def _acknowledge(self, ledger: Ledger[Envelope], turn: _Turn) -> list[int]:
        """The incidents that the operators of this turn have seen, each once."""
        seen: list[int] = []
        for envelope, query in turn.queries:
            if not isinstance(query, Acknowledge) or query.incident_id in seen:
                continue
            stored = await self._engine.find_incident(query.incident_id)
            if stored is not None and stored.incident.identity[:2] == (query.tenant, query.namespace):
                seen.append(query.incident_id)
                ledger.acknowledge((query.tenant, query.namespace))
                turn.acknowledged.add(id(envelope))
        return seen

    # -------------------------------------------------------------------------------------------------------- answers

    def _answer_commands(self, turn: _Turn) -> None:
        """The write of a turn is durable; whatever fails from here on, nobody of these is answered again."""
        if turn.work.replies:
            self._observer.decided(self.number, _results(turn.work.replies), turn.work.rule_changes)
        if turn.work.troubles:
            self._observer.troubled(self.number, turn.work.troubles, turn.work.untold)
        self._hand_out(turn.work.replies)
        # Whoever left may have done so halfway, and another worker has a call open until it is answered.
        self._hand_out((envelope, Overloaded(OVERLOADED_RETRY_MS)) for envelope in turn.work.gone)

    async def _answer_queries(self, ledger: Ledger[Envelope], turn: _Turn) -> None:
        """What operators list is read now, behind the same gate, and after the answers to all others have left."""
        answered = turn.answered = set()
        for envelope, query in turn.queries:
            if type(query) in LISTINGS:
                await trio.lowlevel.checkpoint()
            answer: Answer
            if type(query) in LISTINGS and envelope.closed:
                answer = Overloaded(OVERLOADED_RETRY_MS)
            else:
                answer = await self._look_up(ledger, turn, envelope, query)
            self._hand_out([(envelope, answer)])
            answered.add(id(envelope))

    async def _look_up(self, ledger: Ledger[Envelope], turn: _Turn, envelope: Envelope, query: Query) -> Finding:
        match query:
            case ListRecords():
                return await lookups.list_records(self._engine, query, self._policies, turn.now)
            case ListStuck():
                return await lookups.list_stuck(self._engine, ledger, query, self._policies, turn.now)
            case ListIncidents():
                return await lookups.list_incidents(self._engine, query)
            case Acknowledge():
                return Acknowledged() if id(envelope) in turn.acknowledged else NoSuchIncident()
            case Inspect():
                return await self._inspect(ledger, turn.now)
            case Take():
                return turn.taken[id(envelope)]
            case Heads():
                return Behind(ledger.outbox.behind(query.namespace, query.turns))
            case Moved():
                ledger.outbox.moved(query.namespace, query.turns)
                return Noted()
            case FindOperation():
                found = await self._engine.find_operation(query.tenant, query.namespace, query.operation_id)
                return OperationAt(found)
            case _:
                assert_never(query)

    async def _inspect(self, ledger: Ledger[Envelope], now: int) -> Inspected:
        backlog = self._alarms.backlog(now)
        return await lookups.inspect(self._engine, ledger, backlog, now)

    def _hand_out(self, answers: Iterable[tuple[Envelope, Answer]]) -> None:
        """Let the answers leave: one delivery for each connection that has any."""
        by_sink: dict[Sink, list[tuple[object, Answer]]] = {}
        for envelope, answer in answers:
            by_sink.setdefault(envelope.sink, []).append((envelope.tag, answer))
        for sink, delivery in by_sink.items():
            sink.deliver(delivery)

    def _refuse(self, envelopes: Iterable[Envelope]) -> None:
        wait_ms = max(BACKOFF_MS_MIN, self._reload_backoff.until_ms - self._clock.now_ms())
        self._hand_out((envelope, Unavailable(wait_ms)) for envelope in envelopes)

    # ------------------------------------------------------------------------------------------ rest, failure, return

    async def _rest(self, ledger: Ledger[Envelope], turn: _Turn) -> None:
        """After a good turn: do what no answer waits for, and leave memory if nobody has needed this shard for long."""
        if len(turn.envelopes) > len(turn.queries) or any(type(q) not in BYSTANDERS for _, q in turn.queries):
            self._used_at = turn.now
        self._company.glance()
        if self._in_a_hurry(turn) and not turn.forgets:
            self._put_off = True
            return
        try:
            await self._engine.maintain(small=self._company.shared)
            self._reload_backoff.reset()
            if ledger.waiting or turn.now < self._used_at + self._settings.evict_after_ms or self._closing:
                return
            if len(ledger.outbox) or not ledger.outbox.recalled:
                self._used_at = turn.now
                return
            self._asleep = await self._inspect(ledger, turn.now)
            await self._engine.close()
        except Exception as error:  # Memory is not to be trusted, but what this turn answered stays answered.
            ledger.begin(turn.now)
            self._quarantine(turn.now, error)
            self._drop(_Turn(turn.now, []), error)
            return
        self._last_token = ledger.last_token
        self._ledger = None
        self._alarms.fall_asleep(turn.now)
        self._observer.evicted(self.number)

    def _in_a_hurry(self, turn: _Turn) -> bool:
        """Whether somebody who asks for little waits for what no answer needs to be put off.

        Once only: neither the journal nor what is due must grow for as long as somebody is in a hurry.
        """
        return self._company.pressed and not turn.put_off

    def _drop(self, turn: _Turn, error: Exception) -> None:
        """Nobody is told that it succeeded, and nothing in memory counts any more."""
        ledger, self._ledger = self._ledger, None
        if turn.trace is not None:
            turn.trace.failed(error)
        if ledger is not None:
            self._last_token = ledger.last_token
        if turn.due:
            self._alarms.lost_batch(turn.now)
        self._spoilt = True
        self._alarms.forget()
        concerned = {id(e): e for e in turn.left}
        if ledger is not None:
            if turn.answered is None:
                work = ledger.finish()
                concerned.update((id(e), e) for e in (*(e for e, _ in work.replies), *work.gone))
            concerned.update((id(e), e) for e in ledger.abandon())
        self._observer.batch_failed(self.number, len(concerned), error)
        self._refuse(concerned.values())

    def _quarantine(self, now: int, error: Exception) -> None:
        """Answer nothing but ``unavailable`` for a while that doubles until a whole turn went well again."""
        self._spoilt = self.quarantined = True
        self._observer.quarantined(self.number, error, self._reload_backoff.fail(now))

    def _stop_for_good(self, turn: _Turn) -> None:
        self._fenced = self.quarantined = True
        self._drop(turn, _Fenced())
        self._observer.fenced(self.number)

    async def _bring_back(self, turn: _Turn) -> Ledger[Envelope] | None:
        """Read the shard from disk if anybody needs it; on failure everyone is told ``unavailable``."""
        if not self._spoilt:
            turn.envelopes = self._answer_asleep(turn.envelopes)
            alarm_at = self._alarms.next_at(turn.now)
            due = alarm_at is not None and alarm_at <= turn.now
            if not turn.envelopes and not due:
                return None
        elif self._fenced or turn.now < self._reload_backoff.until_ms:
            self._refuse(turn.envelopes)
            return None
        try:
            opened = await (self._engine.reopen() if self._spoilt else self._engine.open())
            if self._unread and opened.latest_ms > turn.now:
                await self._engine.close()
                raise AheadError(opened.latest_ms - turn.now)
        except Exception as error:  # A file that cannot be read must not end the task that answers for it.
            self._quarantine(turn.now, error)
            self._refuse(turn.envelopes)
            return None
        (self._observer.recovered if self._spoilt else self._observer.opened)(self.number)
        self._spoilt = self.quarantined = self._unread = False
        self._alarms.forget()
        self._used_at = turn.now
        self._ledger = self._read(opened)
        return self._ledger

    def _read(self, opened: Opened) -> Ledger[Envelope]:
        # A token that was decided but never reached the disk was told to nobody; it is skipped all the same.
        last_token = max(opened.last_token, self._last_token)
        if opened.alone is not None:
            self._observer.without_journal(self.number, opened.alone)
        return Ledger(
            self.number,
            self._policies,
            self._census,
            self._entropy,
            last_token,
            opened.tallies,
            sequence=self._sequencer.next,
        )

    def _answer_asleep(self, envelopes: list[Envelope]) -> list[Envelope]:
        """Tell whoever comes by how the shard stood when it fell asleep; returns what needs it awake."""
        if any(type(envelope.command) not in BYSTANDERS for envelope in envelopes):
            return envelopes
        self._hand_out((envelope, self._told_asleep(envelope)) for envelope in envelopes)
        return []

    def _told_asleep(self, envelope: Envelope) -> Finding:
        """It fell asleep with nothing in its outbox."""
        match envelope.command:
            case Take():
                return taking.NOTHING
            case Heads():
                return Behind(())
            case Moved():
                return Noted()
            case _:
                return self._asleep


def _results(replies: Iterable[tuple[Envelope, Reply]]) -> dict[tuple[str, str], int]:
    """How many commands of which kind got which reply."""
    counts: dict[tuple[type, type], int] = {}
    for envelope, reply in replies:
        kinds = type(envelope.command), type(reply)
        counts[kinds] = counts.get(kinds, 0) + 1
    return {(command.__name__, reply.__name__): count for (command, reply), count in counts.items()}
