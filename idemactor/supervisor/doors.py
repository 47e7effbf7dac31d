"""The listening sockets of all workers, bound once: addresses that every worker accepts on, and one's own for each."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from idemactor.config import DoorSection, ServerConfig, TcpAddress, parse_address
from idemactor.config.model import WORKERS_MAX
from idemactor.node import tls_of
from idemactor.server.binding import SocketListener, bind_listeners, remove_worker_files, worker_file
from idemactor.server.http_guard import ALPN_PROTOCOLS
from idemactor.server.service_manager import NO_SOCKETS, Inherited
from idemactor.server.shard_map import ShardMap


@dataclass(frozen=True, slots=True)
class Door:
    """One door's listeners.

    Attributes:
        common: Of the configured addresses; every worker accepts on them.
        direct: By worker, those that it alone accepts on, for clients that know the shard map.
    """

    common: list[SocketListener]
    direct: list[list[SocketListener]]

    def of(self, worker: int) -> list[SocketListener]:
        """Those of one worker. In a worker: the others' are closed, and no file is removed in the end."""
        for number, listeners in enumerate(self.direct):
            for listener in listeners:
                listener.keep_file()
                if number != worker:
                    listener.close()
        for listener in self.common:
            listener.keep_file()
        return [*self.common, *self.direct[worker]]

    def close(self) -> None:
        """In the supervisor: stop accepting, and remove the files."""
        for listeners in (self.common, *self.direct):
            for listener in listeners:
                listener.close()

    def addresses(self) -> tuple[tuple[str, ...], ...]:
        """Each worker's own."""
        return tuple(tuple(listener.address for listener in listeners) for listeners in self.direct)


@dataclass(frozen=True, slots=True)
class Doors:
    """All doors."""

    http: Door
    rpc: Door
    gateway: Door

    def all(self) -> tuple[Door, Door, Door]:
        """In the order of the ready line."""
        return self.http, self.rpc, self.gateway

    def shard_map(self, shards: int, worker: int) -> ShardMap:
        """What a worker tells of all of them."""
        return ShardMap(shards, worker, self.http.addresses(), self.rpc.addresses())

    def close(self) -> None:
        """See ``Door.close``."""
        for door in self.all():
            door.close()


@contextlib.contextmanager
def bound(config: ServerConfig, sockets: Inherited = NO_SOCKETS) -> Iterator[Doors]:
    """All doors, bound; closed in the end. Nobody asks a certain worker for what it proxies.

    Args:
        config: The configuration.
        sockets: Those that listen already.

    Raises:
        StartError: An address cannot be bound, or a TLS file not be used.
    """
    workers = config.server.workers
    with contextlib.ExitStack() as undo:
        http = _bind(config.http, sockets, workers, tls_of(config.http, ALPN_PROTOCOLS), undo)
        rpc = _bind(config.rpc, sockets, workers, tls_of(config.rpc), undo)
        proxied = config.gateway.door
        gateway = _bind(proxied, sockets, workers, tls_of(proxied, ALPN_PROTOCOLS), undo, direct=False)
        yield Doors(http, rpc, gateway)


def _bind(
    section: DoorSection,
    sockets: Inherited,
    workers: int,
    tls: ssl.SSLContext | None,
    undo: contextlib.ExitStack,
    *,
    direct: bool = True,
) -> Door:
    door = Door([], [])
    undo.callback(door.close)
    door.common.extend(bind_listeners(section.bind, tls, sockets.sockets))
    if direct:
        remove_worker_files(section.bind, range(workers, WORKERS_MAX))
    for worker in range(workers):
        door.direct.append(bind_listeners(_direct(section.bind, worker) if direct else (), tls))
    return door


def _direct(addresses: Sequence[str], worker: int) -> list[str]:
    """Beside each configured address one for a single worker: another port of the host, a file beside the file."""
    direct = []
    for text in addresses:
        if isinstance(parse_address(text), TcpAddress):
            direct.append(f"{text.rpartition(':')[0]}:0")
        else:
            direct.append(worker_file(text, worker))
    return direct
