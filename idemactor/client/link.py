"""One multiplexed connection that comes back by itself.

Callers put calls into a pipeline; one task owns the connection. It connects when something is wanted, says who it is,
and has the bytes carried both ways. When the connection ends, what has no answer goes back to the head of the queue and
is sent again: every call may be repeated as it stands.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import ByteStream, TaskStatus

from idemactor.client import forks
from idemactor.client.backoff import Backoff
from idemactor.client.carrier import BROKEN, READ_BYTES, carry
from idemactor.client.errors import ClientClosed, IdemactorClientError, ServerNotTrusted, Unreachable
from idemactor.client.flight import Answer, Flight
from idemactor.client.pipeline import Pipeline
from idemactor.client.protocol import Protocol, encode_body
from idemactor.client.results import error_of

Dial = Callable[[], Awaitable[ByteStream]]
"""Makes a connection; raises OSError where that cannot be."""


class Link:
    """The connection to one address; ``run`` must be running for calls to get anywhere.

    Args:
        dial: Makes a connection.
        where: To whom, for people.
        token: What to authenticate with, if anything.
        connect_ms: How long connecting and authenticating may take.
        silence_ms: A connection on which nothing comes for so long after a call was sent is given up.
        in_flight_max: How many calls may be on their way; one more waits.
    """

    local = False

    def __init__(
        self,
        dial: Dial,
        where: str,
        *,
        token: str | None,
        connect_ms: int,
        silence_ms: int,
        in_flight_max: int,
    ) -> None:
        self.where = where
        self.trouble: BaseException | None = None
        self._dial = dial
        self._token = token
        self._connect_s = connect_ms / 1000
        self._silence_s = silence_ms / 1000
        self._pipeline = Pipeline(in_flight_max)
        self.exchange = self._pipeline.exchange

    # ---------------------------------------------------------------------------------------------------- for callers

    async def adopt(self, flight: Flight) -> Answer | None:
        """The answer to a call whose caller was cancelled; None where the connection ended before it came."""
        if flight.adopted:
            await flight.finished()
        return flight.answer if flight.answer and not isinstance(flight.answer.error, Unreachable) else None

    # ---------------------------------------------------------------------------------------------------- its own task

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Connect whenever something is wanted, and serve until the connection ends; until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pipeline.deadlines.run)
                task_status.started()
                await self._run()
        finally:
            self._pipeline.close(ClientClosed("the client was closed"))

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            await self._pipeline.demand()
            try:
                with anyio.fail_after(self._connect_s):
                    stream = await self._connect()
            except ssl.SSLCertVerificationError as error:
                untrusted = ServerNotTrusted(f"the certificate of {self.where} is not trusted: {error}")
                self._pipeline.refuse_all(untrusted)
                continue
            except BROKEN as error:
                self.trouble = error
                await anyio.sleep(backoff.next_s())
                continue
            except IdemactorClientError as error:
                # The server answers but does not let us in: whoever waits is told why.
                self._pipeline.refuse_all(error)
                continue
            self.trouble = None
            await self._serve(stream)
            if self._pipeline.heard:
                backoff.reset()
            await anyio.sleep(backoff.next_s())

    async def _connect(self) -> ByteStream:
        stream = await self._dial()
        try:
            self._protocol: Protocol[Flight] = Protocol()
            if self._token is not None:
                await self._authenticate(stream, self._token)
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
        return stream

    async def _authenticate(self, stream: ByteStream, token: str) -> None:
        """Say who calls, before anything else.

        Raises:
            IdemactorClientError: The server does not take the token.
        """
        saying = Flight("auth", {"token": token})
        await stream.send(self._protocol.request(encode_body(saying.method, saying.params), saying))
        while True:
            for _, error, _ in self._protocol.receive(await stream.receive(READ_BYTES)):
                if error is None:
                    return
                raise error_of(error)

    async def _serve(self, stream: ByteStream) -> None:
        self._pipeline.connected(self._protocol)
        try:
            with forks.unshared_stream(stream):
                self.trouble = await carry(stream, self._pipeline, self._silence_s)
        finally:
            self._pipeline.lose()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)
