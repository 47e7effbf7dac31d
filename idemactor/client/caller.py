"""Asks until there is an answer or the time is up. The one place where calls are repeated."""

from __future__ import annotations

import math
import os
from typing import Any

import anyio

from idemactor.client.backoff import Backoff
from idemactor.client.causes import cause_of
from idemactor.client.errors import ClientClosed, ForkedError, OutOfService, Overloaded, Unreachable
from idemactor.client.flight import Answer, Channel, Flight


class Budget:
    """How long one call may take: its time, and what a server has it wait on purpose.

    A server that is not there has nobody wait: what is spent without it counts, so that a call that may wait for a
    minute is given up as soon as any other.

    Attributes:
        scope: Where the call runs.
        deadline: When the time is up, as things are; seconds of the event loop's clock.
    """

    def __init__(self, flight: Flight, budget_ms: int | None, local: bool) -> None:
        now_s = anyio.current_time()
        self._flight = flight
        self._local = local
        self._end_s = math.inf if budget_ms is None else now_s + budget_ms / 1000
        self._waits_s = flight.waits_ms / 1000
        self._waited_s = 0.0
        self._moved_s = now_s
        self.scope = anyio.CancelScope()
        self._set(flight.waiting)
        flight.on_move = self._move

    def _move(self, spent: bool) -> None:
        now_s = anyio.current_time()
        if not self._flight.waiting and spent:
            self._waited_s = min(self._waits_s, self._waited_s + now_s - self._moved_s)
        self._moved_s = now_s
        self._set(self._flight.waiting)

    def _set(self, waiting: bool) -> None:
        self.deadline = self._end_s + (self._waits_s if waiting else self._waited_s)
        # What always answers may wait for as long as its own clock says, which may be one that a test moves.
        self.scope.deadline = math.inf if self._local else self.deadline


class Caller:
    """The calls of one client over one channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._process: int | None = os.getpid()

    def close(self) -> None:
        """No further calls."""
        self._process = None

    def check(self) -> None:
        """Raise where calls cannot be made.

        Raises:
            ClientClosed: The client is not open.
            ForkedError: It was opened in another process, whose connection must not be shared.
        """
        if self._process is None:
            raise ClientClosed("the client is not open: use it inside `async with`")
        if self._process != os.getpid():
            raise ForkedError("the client was opened before a fork: open one of your own in this process")

    async def ask(self, flight: Flight, budget_ms: int | None) -> Any:
        """The result of a call as it came.

        Lost answers are asked for again, and so are answers of "not now", with growing waits in between.

        Args:
            flight: The call.
            budget_ms: How long to go on, beside what a server that is there waits on purpose; None: until there is an
                answer.

        Raises:
            Refused: The server said no.
            OutOfService: The time is up.
        """
        self.check()
        trouble: OutOfService | None = None
        backoff = Backoff()
        budget = Budget(flight, budget_ms, self.channel.local)
        with budget.scope:
            while trouble is None or anyio.current_time() < budget.deadline:
                answer = await self._exchange(flight)
                if not isinstance(answer.error, OutOfService):
                    return _opened(answer)
                trouble = answer.error
                await anyio.sleep(backoff.next_s())
        if trouble is not None:
            raise trouble
        where, cause = self.channel.where, self.channel.trouble
        raise Unreachable(f"no answer from {where} within {budget_ms} ms: {cause_of(cause)}") from cause

    async def _exchange(self, flight: Flight) -> Answer:
        answer = await self.channel.exchange(flight)
        # What a server did not take it cannot have done; of what it failed at nothing is known.
        if isinstance(answer.error, OutOfService) and not isinstance(answer.error, Overloaded):
            flight.uncertain = True
        return answer


def _opened(answer: Answer) -> Any:
    if answer.error is not None:
        raise answer.error
    return answer.result
