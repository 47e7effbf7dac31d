"""PostgreSQL for programs on trio. psycopg knows no trio, so every piece of work runs in a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg
import trio

from examples.order_api.surface import Unavailable

T = TypeVar("T")
Connection = Any
"""``psycopg.Connection``."""

CONNECTIONS_MAX: Final = 8


@dataclass(slots=True)
class Database:
    """A few connections, made when they are needed and thrown away when they break."""

    conninfo: str
    _idle: list[Connection] = field(default_factory=list)
    _limiter: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(CONNECTIONS_MAX))

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Do ``work`` in one transaction, which is durable when this returns.

        A caller that leaves does not stop it: what is half done in a thread is carried through.

        Raises:
            Unavailable: The database did not answer; whether the transaction took place is not known.
        """
        return await trio.to_thread.run_sync(self._run, work, limiter=self._limiter)

    def _run(self, work: Callable[[Connection], T]) -> T:
        try:
            connection = self._idle.pop() if self._idle else self._connect()
            try:
                with connection.transaction():
                    done = work(connection)
            except psycopg.OperationalError:
                connection.close()
                raise
            except BaseException:
                self._keep(connection)
                raise
        except psycopg.OperationalError as error:
            raise Unavailable(str(error)) from error
        self._keep(connection)
        return done

    def _connect(self) -> Connection:
        # Planned anew each time: a plan that was made while a table was empty reads all of a full one.
        return psycopg.connect(self.conninfo, connect_timeout=5, prepare_threshold=None)

    def _keep(self, connection: Connection) -> None:
        if not connection.closed:
            self._idle.append(connection)
