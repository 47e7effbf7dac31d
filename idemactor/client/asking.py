"""What all commands of a client need: to ask until there is an answer, and to be sure of which kind it is."""

from __future__ import annotations

import abc
from collections.abc import Awaitable
from typing import Any, TypeVar

from idemactor.client.flight import Flight
from idemactor.client.results import Result, result_of

T = TypeVar("T")


class Asking(abc.ABC):
    """Who asks; what carries the calls, and how long they are repeated, is the subclass's."""

    _holder: str | None
    """Who asks, where a call says nothing else."""

    @abc.abstractmethod
    def _ask(self, flight: Flight, timeout_ms: int | None) -> Awaitable[Any]:
        """The result of a call as it came; raises Refused and OutOfService."""

    async def _send(self, flight: Flight, timeout_ms: int | None) -> Result:
        return result_of(flight.method, await self._ask(flight, timeout_ms))


def only(kind: type[T], result: Result) -> T:
    """``result_of`` has seen to it that an answer is one that its call may get."""
    assert isinstance(result, kind)
    return result
