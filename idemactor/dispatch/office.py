"""All relays and reconcilers of a process."""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from idemactor.dispatch import limits
from idemactor.dispatch.destination import Destination
from idemactor.dispatch.reconciler import Reconciler
from idemactor.dispatch.relay import Relay, Surroundings
from idemactor.gateway.proxy.connecting import Connect
from idemactor.gateway.proxy.limits import ProxyLimits
from idemactor.gateway.proxy.routes import Origin
from idemactor.gateway.proxy.upstream import Upstream
from idemactor.observability.logs import log_event

_MS_PER_S: Final = 1_000
_log = logging.getLogger(__name__)


def destinations_of(
    destinations: Mapping[str, Destination], worker: int = 0, workers: int = 1
) -> dict[str, Destination]:
    """Those that one worker of several delivers to: each namespace has one relay, whoever owns the shards."""
    return {name: one for name, one in destinations.items() if zlib.crc32(name.encode()) % workers == worker}


class DispatchOffice:
    """Runs a relay for every destination, and a reconciler where there is somebody to ask.

    Args:
        destinations: By namespace.
        around: What they need.
        connect: Opens connections; None: as their origins say.

    Attributes:
        finished: Set once ``run`` has nothing under way any more.
    """

    def __init__(
        self, destinations: Mapping[str, Destination], around: Surroundings, connect: Connect | None = None
    ) -> None:
        self.finished = trio.Event()
        self._destinations = dict(destinations)
        self._around = around
        self._connect = connect
        self._relays: dict[str, Relay] = {}
        self._draining = False
        self._asking = trio.CancelScope()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver and reconcile until ``drain``, and then until what was begun has ended."""
        try:
            async with trio.open_nursery() as nursery:
                for namespace, destination in self._destinations.items():
                    nursery.start_soon(self._kept_up, namespace, functools.partial(self._relay, namespace, destination))
                nursery.start_soon(self._reconcile)
                task_status.started()
        finally:
            self.finished.set()

    def drain(self, within_ms: float = limits.DRAIN_MS) -> None:
        """Take nothing new; what is under way may end, within ``within_ms`` and ``limits.DRAIN_MS``."""
        self._draining = True
        self._asking.cancel()
        for relay in self._relays.values():
            relay.drain(min(within_ms, limits.DRAIN_MS))

    async def _relay(self, namespace: str, destination: Destination) -> None:
        upstream = self._upstream(destination.endpoint.origin, destination.concurrency)
        relay = self._relays[namespace] = Relay(namespace, destination, upstream, self._around)
        await relay.run()

    async def _reconcile(self) -> None:
        with self._asking:
            async with trio.open_nursery() as nursery:
                for namespace, destination in self._destinations.items():
                    if destination.status is not None:
                        work = functools.partial(self._reconciler, namespace, destination)
                        nursery.start_soon(self._kept_up, namespace, work)

    async def _reconciler(self, namespace: str, destination: Destination) -> None:
        page = destination.status
        assert page is not None
        upstream = self._upstream(page.endpoint.origin, limits.RECONCILE_CONCURRENCY)
        await Reconciler(namespace, destination, page, upstream, self._around).run()

    def _upstream(self, origin: Origin, concurrency: int) -> Upstream:
        return Upstream(origin, ProxyLimits(concurrent_max=concurrency), self._connect)

    async def _kept_up(self, namespace: str, work: Callable[[], Awaitable[None]]) -> None:
        """Begin again after a fault of our own: nothing is kept in memory that a fault could lose."""
        while not self._draining:
            try:
                await work()
            except Exception as error:
                log_event(_log, logging.ERROR, "dispatch_failed", error, namespace=namespace)
                await trio.sleep(limits.RESTART_MS / _MS_PER_S)
