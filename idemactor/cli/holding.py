"""The life of one ``idemactor run``: wait for the key, run the command, tell the server how it ended."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import trio

from idemactor.cli.answers import code_of
from idemactor.cli.child import Child, Tail
from idemactor.cli.command import warn
from idemactor.cli.exits import SIGNALLED, Exit, exit_of_code
from idemactor.cli.kept import keep_outcome
from idemactor.cli.output import now_ms, safe
from idemactor.cli.refusals import line_of
from idemactor.client import (
    Client,
    DuplicateError,
    Hold,
    IdemactorClientError,
    InFlightError,
    LeaseLost,
    OutOfService,
    Refused,
)

TELL_MS_MIN: Final = 30_000
"""How long it is tried at least to tell how the command ended: a server that restarts should hear of it."""
SOON_MS: Final = 1_000
"""How long it is still tried after a signal that comes when the command has ended."""

_PASSED_ON: Final = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for; the options of ``run`` under their names, times in milliseconds."""

    command: tuple[str, ...]
    key: str
    lease_ms: int | None
    ttl_ms: int | None
    window_ms: int | None
    payload_json: str | None
    fingerprint: str | None
    holder: str | None
    wait: bool | int
    commit_on: frozenset[int]
    release_on: frozenset[int]
    capture: bool
    capture_max: int
    on_lost: Literal["terminate", "warn"]
    grace_ms: int
    on_unavailable: Literal["closed", "open"] | None
    done_exit: int
    busy_exit: int


class Running:
    """One run of one command.

    Signals that come before the command runs end the waiting, later ones are its own; those that come after its end
    make an end of telling the server about it.

    Args:
        plan: What was asked for.
        hurry: Called when nothing that is still to be told is worth waiting for.
    """

    def __init__(self, plan: Plan, hurry: Callable[[], None] = lambda: None) -> None:
        self._plan = plan
        self._hurry = hurry
        self._child: Child | None = None
        self._ended = trio.Event()
        self._code: int | None = None
        self._interrupted: signal.Signals | None = None
        self._terminated = False
        self._holding = trio.CancelScope()
        self._exit: int | None = None
        """The exit code, once it is said what became of the key."""

    async def run(self, client: Client, namespace: str) -> int:
        """Do it all.

        Returns:
            The exit code to end with; what went wrong is said.
        """
        # What is ignored here, as under nohup, stays ignored: there and in the command.
        heeded = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        with trio.open_signal_receiver(signal.SIGCHLD, *heeded) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._take_signals, signals)
                code = await self._hold(client, namespace)
                nursery.cancel_scope.cancel()
        return code

    async def _take_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if self._child is None:
                if number != signal.SIGCHLD:
                    self._interrupted = signal.Signals(number)
                    self._hurry()
                    self._holding.cancel()
            elif self._code is not None:
                if number != signal.SIGCHLD:
                    self._hurry()
                    # Not at once: who stops a whole group may have reached the command a moment before us.
                    self._holding.deadline = min(self._holding.deadline, trio.current_time() + SOON_MS / 1000)
            elif number != signal.SIGCHLD:
                self._child.pass_on(signal.Signals(number))
            elif self._child.poll() is not None:
                self._ended.set()

    # ---------------------------------------------------------------------------------------------------------- the key

    async def _hold(self, client: Client, namespace: str) -> int:
        plan = self._plan
        held = client.hold(
            namespace,
            plan.key,
            payload_json=plan.payload_json,
            fingerprint=plan.fingerprint,
            lease_ms=plan.lease_ms,
            ttl_ms=plan.ttl_ms,
            window_ms=plan.window_ms,
            wait=plan.wait,
            on_lost="tell",
            on_unavailable=plan.on_unavailable,
            holder=plan.holder,
        )
        code: int = Exit.UNEXPECTED
        try:
            with self._holding:
                async with held as hold:
                    code = await self._held(client, hold)
        except IdemactorClientError as error:
            return self._failed(error)
        if self._interrupted is not None:
            warn(f"not run: {self._interrupted.name} came first")
            return SIGNALLED + self._interrupted
        if self._holding.cancelled_caught:
            return self._exit if self._exit is not None else self._not_taken(None)
        return code

    def _failed(self, error: IdemactorClientError) -> int:
        """The key could not be had, or what became of it could not be told; the exit code."""
        if self._exit is not None:
            return self._exit
        if self._code is not None:
            return self._not_taken(error)
        warn(f"not run: {line_of(error, now_ms())}")
        match error:
            case InFlightError():
                return self._plan.busy_exit
            case DuplicateError():
                return self._plan.done_exit
            case LeaseLost():
                return Exit.LEASE_LOST
            case _:
                return exit_of_code(code_of(error))

    def _not_taken(self, error: IdemactorClientError | None) -> int:
        """The server would not hear how the command ended, or could not be told; the exit code."""
        if isinstance(error, Refused):
            warn(f"the command ended with {self._how}, but that was not taken: {line_of(error, now_ms())}")
            code = exit_of_code(code_of(error))
        else:
            why = f" ({line_of(error, now_ms())})" if isinstance(error, OutOfService) else ""
            warn(
                f"the command ended with {self._how}, and nobody could be told{why}: unless the server heard of it all"
                " the same, on_lease_expiry decides, once the lease has run out, whether it may run again"
            )
            code = Exit.UNTOLD
        return Exit.LEASE_LOST if self._terminated else code

    async def _held(self, client: Client, hold: Hold) -> int:
        """What the hold's body does; the exit code."""
        if hold.completed:
            warn(f"not run: {safe(hold.key)} was done before (operation {safe(hold.operation_id)})")
            return self._plan.done_exit
        if self._interrupted is not None:
            hold.give_back("interrupted before the command ran")
            return SIGNALLED + self._interrupted
        if not hold.protected:
            warn("no server answers: the command runs unprotected")
        elif hold.takeover:
            warn(f"takeover: an earlier attempt at {safe(hold.key)} may already have had its effect")
        room = await self._room(client, hold)
        hold.begin_effect()
        try:
            child, tail = self._start(hold)
        except (OSError, ValueError) as error:
            return self._not_started(hold, error)
        self._child = child
        await self._see_through(hold, child)
        return await self._tell(client, hold, tail, room)

    # ------------------------------------------------------------------------------------------------------ the command

    def _start(self, hold: Hold) -> tuple[Child, Tail | None]:
        plan = self._plan
        tail = Tail(plan.capture_max) if plan.capture else None
        child = Child(
            plan.command,
            command_environment(os.environ, hold),
            tail=tail,
            dies_with_us=plan.on_lost == "terminate",
        )
        return child, tail

    def _not_started(self, hold: Hold, error: OSError | ValueError) -> int:
        """It never ran: nothing happened, and it may be tried again."""
        why = error.strerror if isinstance(error, OSError) else str(error)
        hold.give_back(f"not started: {why}")
        warn(f"{safe(self._plan.command[0])}: {why}")
        missing = isinstance(error, OSError) and error.errno == errno.ENOENT
        self._exit = Exit.NO_SUCH_COMMAND if missing else Exit.CANNOT_EXECUTE
        return self._exit

    async def _see_through(self, hold: Hold, child: Child) -> None:
        """Wait for its end."""
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._watch_lease, hold, child)
            helpers.start_soon(child.pass_output)
            await self._ended.wait()
            helpers.cancel_scope.cancel()
        await child.drain()
        self._code = child.poll()

    async def _tell(self, client: Client, hold: Hold, tail: Tail | None, room: int | None) -> int:
        """Say what its end means for the key; the exit code. ``room``: how large the outcome may be, bytes."""
        code = self._code
        assert code is not None
        tell_ms = max(hold.options.timeout_ms, TELL_MS_MIN)
        if self._terminated:
            # Whatever it made of our SIGTERM: it did not end by itself, and somebody else may be at it.
            return await self._doubt(client, hold, f"lease lost, {self._how}", tell_ms)
        if code in self._plan.release_on:
            return await self._give_back(client, hold, tell_ms)
        if code not in self._plan.commit_on:
            return await self._doubt(client, hold, self._how, tell_ms)
        keep_outcome(hold, code, tail, room)
        hold.options = replace(hold.options, timeout_ms=tell_ms)
        return code

    async def _give_back(self, client: Client, hold: Hold, tell_ms: int) -> int:
        """Say that nothing happened; the exit code."""
        assert self._code is not None
        hold.give_back(self._how)
        if hold.token is None or hold.takeover:
            # A takeover is not released, or the next one would not be told of the attempt before: the hold knows how.
            hold.options = replace(hold.options, timeout_ms=tell_ms)
            return self._code
        release = client.release(hold.namespace, hold.key, hold.token, reason=self._how, timeout_ms=tell_ms)
        untold = await self._not_told(hold, release)
        self._exit = self._code if untold is None else untold
        return self._exit

    async def _doubt(self, client: Client, hold: Hold, reason: str, tell_ms: int) -> int:
        """Say that nobody knows how far it came, and only then that it is in doubt; the exit code."""
        assert self._code is not None
        code = Exit.LEASE_LOST if self._terminated else self._code
        hold.leave_in_doubt(reason)
        if hold.token is None:
            warn(f"the command ended with {self._how}: {safe(hold.key)} is in doubt once a server was told")
            return code
        doubt = client.doubt(hold.namespace, hold.key, hold.token, reason=reason, timeout_ms=tell_ms)
        self._exit = await self._not_told(hold, doubt)
        if self._exit is None:
            warn(f"the command ended with {self._how}: {safe(hold.key)} is in doubt until it is resolved")
            self._exit = code
        return self._exit

    async def _not_told(self, hold: Hold, telling: Awaitable[object]) -> int | None:
        """Tell the server; None where it took it, else the exit code that says that it did not."""
        try:
            await telling
        except IdemactorClientError as error:
            # That was long enough. The hold will try once more as it ends.
            self._hurry()
            hold.options = replace(hold.options, timeout_ms=1)
            return self._not_taken(error)
        return None

    async def _room(self, client: Client, hold: Hold) -> int | None:
        """How large an outcome the namespace keeps, bytes; None where that is not known, or does not matter."""
        if not (self._plan.capture and hold.protected):
            return None
        try:
            return (await client.policy(hold.namespace)).outcome_max_bytes
        except IdemactorClientError as error:
            warn(f"how much output the namespace keeps is not known: {line_of(error, now_ms())}")
            return None

    async def _watch_lease(self, hold: Hold, child: Child) -> None:
        """A lost lease means that somebody else may be told to go on."""
        await hold.lost.wait()
        if self._plan.on_lost == "warn":
            warn("the lease was lost: somebody else may run the command now")
            return
        if child.poll() is not None:
            return  # It had ended by itself, and its exit code means what it says.
        warn("the lease was lost: ending the command")
        self._terminated = True
        child.send(signal.SIGTERM)
        await trio.sleep(self._plan.grace_ms / 1000)
        child.send(signal.SIGKILL)

    @property
    def _how(self) -> str:
        """How the command ended, for people."""
        assert self._child is not None
        return self._child.how


def command_environment(environment: Mapping[str, str], hold: Hold) -> dict[str, str]:
    """The variables of the command: ours, and what it may want to know of its hold.

    Where it runs unprotected, attempt and fencing token are not there.
    """
    found = dict(environment)
    told = {
        "IDEMACTOR_KEY": hold.key,
        "IDEMACTOR_NAMESPACE": hold.namespace,
        "IDEMACTOR_OPERATION_ID": hold.operation_id,
        "IDEMACTOR_TAKEOVER": "true" if hold.takeover else "false",
        "IDEMACTOR_ATTEMPT": None if hold.attempt is None else str(hold.attempt),
        "IDEMACTOR_FENCING_TOKEN": None if hold.token is None else str(hold.token),
    }
    for name, value in told.items():
        # One that is not known must not be there from a run around this one.
        found.pop(name, None)
        if value is not None:
            found[name] = value
    return found
