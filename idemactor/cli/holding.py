"""The life of one ``idemactor run``: wait for the key, run the command, tell the server how it ended."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import trio

from idemactor.cli.answers import code_of
from idemactor.cli.child import Child, Tail
from idemactor.cli.command import warn
from idemactor.cli.exits import SIGNALLED, Exit, exit_of_code
from idemactor.cli.output import now_ms, safe
from idemactor.cli.refusals import line_of
from idemactor.client import Client, DuplicateError, Hold, IdemactorClientError, InFlightError, LeaseLost

OUTCOME_STATUS: Final = 200
COMMIT_MS_MIN: Final = 30_000
"""How long a commit is tried at least: the command did its work, and a server that restarts should hear of it."""
EXIT_HEADER: Final = "exit-status"
DROPPED_HEADER: Final = "output-bytes-dropped"
"""Headers of the outcome: the command's exit code, and how much of its output came before what is kept."""

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
    """One run of one command. Signals that come before the command runs end the waiting, later ones are its own."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._child: Child | None = None
        self._ended = trio.Event()
        self._code: int | None = None
        self._interrupted: signal.Signals | None = None
        self._terminated = False
        self._entering = trio.CancelScope()

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
                    self._entering.cancel()
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
            with self._entering:
                async with held as hold:
                    code = await self._held(hold)
        except IdemactorClientError as error:
            return self._failed(error)
        if self._interrupted is not None:
            warn(f"not run: {self._interrupted.name} came first")
            return SIGNALLED + self._interrupted
        return code

    def _failed(self, error: IdemactorClientError) -> int:
        """The key could not be had, or what became of it could not be told; the exit code."""
        line = line_of(error, now_ms())
        if self._code is not None:
            warn(f"the command ended with {self._how}, but its commit was not taken: {line}")
            return exit_of_code(code_of(error))
        warn(f"not run: {line}")
        match error:
            case InFlightError():
                return self._plan.busy_exit
            case DuplicateError():
                return self._plan.done_exit
            case LeaseLost():
                return Exit.LEASE_LOST
            case _:
                return exit_of_code(code_of(error))

    async def _held(self, hold: Hold) -> int:
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
        hold.begin_effect()
        try:
            child, tail = self._start(hold)
        except (OSError, ValueError) as error:
            return self._not_started(hold, error)
        self._child = child
        return await self._see_through(hold, child, tail)

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
        return Exit.NO_SUCH_COMMAND if missing else Exit.CANNOT_EXECUTE

    async def _see_through(self, hold: Hold, child: Child, tail: Tail | None) -> int:
        """Wait for its end, and say what that means for the key."""
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._watch_lease, hold, child)
            helpers.start_soon(child.pass_output)
            await self._ended.wait()
            helpers.cancel_scope.cancel()
        await child.drain()
        code = child.poll()
        assert code is not None
        self._code = code
        if code in self._plan.commit_on:
            _keep_outcome(hold, code, tail)
            hold.options = replace(hold.options, timeout_ms=max(hold.options.timeout_ms, COMMIT_MS_MIN))
            return code
        if code in self._plan.release_on:
            hold.give_back(self._how)
        else:
            hold.leave_in_doubt(f"lease lost, {self._how}" if self._terminated else self._how)
            warn(f"the command ended with {self._how}: {safe(hold.key)} is in doubt until it is resolved")
        return Exit.LEASE_LOST if self._terminated else code

    async def _watch_lease(self, hold: Hold, child: Child) -> None:
        """A lost lease means that somebody else may be told to go on."""
        await hold.lost.wait()
        if self._plan.on_lost == "warn":
            warn("the lease was lost: somebody else may run the command now")
            return
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


def _keep_outcome(hold: Hold, code: int, tail: Tail | None) -> None:
    headers = [(EXIT_HEADER, str(code))]
    if tail is not None and tail.dropped:
        headers.append((DROPPED_HEADER, str(tail.dropped)))
    hold.set_outcome(status=OUTCOME_STATUS, headers=headers, body=tail.kept if tail is not None else b"")


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
