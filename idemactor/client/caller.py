"""Asks until there is an answer or the time is up. The one place where calls are repeated."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import anyio

from idemactor.client.backoff import Backoff
from idemactor.client.causes import cause_of
from idemactor.client.errors import ClientClosed, ForkedError, OutOfService, Overloaded, Unreachable
from idemactor.client.eventloop import running
from idemactor.client.flight import Channel, Flight
from idemactor.client.tracing import traceparent


class Patience:
    """How long a call that may wait on purpose goes on: its time, and what a server has it wait.

    A server that is not there has nobody wait: what is spent without it counts, so that a call that may wait for a
    minute is given up as soon as any other. Keeps the call's ``deadline_s``, as things are.
    """

    def __init__(self, flight: Flight, now_s: Callable[[], float]) -> None:
        self._flight = flight
        self._now_s = now_s
        self._end_s = flight.deadline_s
        self._waits_s = flight.waits_ms / 1000
        self._waited_s = 0.0
        self._moved_s = now_s()
        self._set()
        flight.on_move = self._move

    def _move(self, spent: bool) -> None:
        now_s = self._now_s()
        if not self._flight.waiting and spent:
            self._waited_s = min(self._waits_s, self._waited_s + now_s - self._moved_s)
        self._moved_s = now_s
        self._set()

    def _set(self) -> None:
        self._flight.deadline_s = self._end_s + (self._waits_s if self._flight.waiting else self._waited_s)


class Caller:
    """The calls of one client over one channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._now_s = running().now_s
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
        if not flight.own:
            flight.parent = traceparent()
        now_s = self._now_s
        flight.deadline_s = math.inf if budget_ms is None else now_s() + budget_ms / 1000
        if flight.waits_ms:
            Patience(flight, now_s)
        trouble: OutOfService | None = None
        backoff = Backoff()
        while trouble is None or now_s() < flight.deadline_s:
            answer = await self.channel.exchange(flight)
            if answer is None:
                break
            if answer.error is None:
                return answer.result
            if not isinstance(answer.error, OutOfService):
                raise answer.error
            trouble = answer.error
            # What a server did not take it cannot have done; of what it failed at nothing is known.
            if not isinstance(trouble, Overloaded):
                flight.uncertain = True
            await self._pause(flight, backoff.next_s())
        if trouble is not None:
            raise trouble
        where, cause = self.channel.where, self.channel.trouble
        raise Unreachable(f"no answer from {where} within {budget_ms} ms: {cause_of(cause)}") from cause

    async def _pause(self, flight: Flight, pause_s: float) -> None:
        until_s = self._now_s() + pause_s
        await anyio.sleep_until(until_s if self.channel.local else min(until_s, flight.deadline_s))
