"""A channel to a server of several processes that goes straight to the owner of a key.

Any process answers any call, so that the shard map is only ever a hint: before it is known, for what has no key, and
wherever an owner's own address cannot be reached, a connection to the server's address does as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from idemactor.client.address import Address, TcpAddress, UnixAddress, parse_address
from idemactor.client.backoff import Backoff
from idemactor.client.errors import OutOfService
from idemactor.client.flight import Answer, Flight
from idemactor.client.link import Dial, Link
from idemactor.core.keys import Identity, identity_hash, shard_of

HASH: Final = "blake2b-64"
"""The only way from a key to its shard that we know."""

DIRECT_S: Final = 0.5
"""How long connecting to an owner may take before the server's address has to do."""


class Fleet:
    """Links to a server's processes: to whichever answers at its address, and to each that owns a key asked for.

    Args:
        base: The server's address.
        dial: Makes a connection to an address.
        link: Makes a link from what makes its connections.
    """

    local = False

    def __init__(self, base: Address, dial: Callable[[Address], Dial], link: Callable[[Dial], Link]) -> None:
        self._base_address = base
        self._dial = dial
        self._make_link = link
        self._base = link(dial(base))
        self._links: dict[int, Link] = {}
        self._addresses: dict[int, Address] = {}
        self._owners: list[int] = []
        self._tenant = ""
        self._asked = False
        self._reason = anyio.Event()
        self._tasks: TaskGroup | None = None

    @property
    def where(self) -> str:
        """The server's address, for people."""
        return self._base.where

    @property
    def trouble(self) -> BaseException | None:
        """Why one of the links has no connection just now, where that is known."""
        troubles = (link.trouble for link in (self._base, *self._links.values()))
        return next((trouble for trouble in troubles if trouble is not None), None)

    async def exchange(self, flight: Flight) -> Answer | None:
        """See ``Channel``."""
        if not self._asked:
            self._asked = True
            self._reason.set()
        return await self._link_of(flight).exchange(flight)

    async def adopt(self, flight: Flight) -> Answer | None:
        """See ``Channel``; it does not matter which link carries the call."""
        return await self._base.adopt(flight)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See ``Channel``."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            await tasks.start(self._base.run)
            tasks.start_soon(self._learn)
            task_status.started()

    # ------------------------------------------------------------------------------------------------------- the map

    def _link_of(self, flight: Flight) -> Link:
        namespace, key = flight.params.get("namespace"), flight.params.get("key")
        if not self._owners or not isinstance(namespace, str) or not isinstance(key, str):
            return self._base
        try:
            hashed = identity_hash(Identity(self._tenant, namespace, key))
        except UnicodeEncodeError:
            # The server says what is wrong with such a key.
            return self._base
        return self._links.get(self._owners[shard_of(hashed, len(self._owners))], self._base)

    async def _learn(self) -> None:
        """Ask for the map, at first and whenever it was seen to be wrong, for as long as the server has one for us."""
        backoff = Backoff()
        while True:
            await self._reason.wait()
            self._reason = anyio.Event()
            answer = await self._base.exchange(Flight("shards", {}))
            if answer is None or isinstance(answer.error, OutOfService):
                self._reason.set()
            elif answer.error is not None or not self._understand(answer.result):
                return
            await anyio.sleep(backoff.next_s())

    def _understand(self, told: Any) -> bool:
        """Take a map; whether it was one, of more than one process."""
        try:
            owners, addresses = _read(told, self._base_address)
            self._tenant = str(told["tenant"])
        except (KeyError, TypeError, ValueError, IndexError):
            return False
        if len(addresses) < 2:
            return False
        self._addresses = addresses
        for worker in addresses.keys() - self._links.keys():
            self._links[worker] = link = self._make_link(self._dial_owner(worker))
            assert self._tasks is not None
            self._tasks.start_soon(link.run)
        self._owners = owners
        return True

    def _dial_owner(self, worker: int) -> Dial:
        async def dial() -> ByteStream:
            try:
                with anyio.fail_after(DIRECT_S):
                    return await self._dial(self._addresses[worker])()
            except (OSError, KeyError):
                # The server may have been started anew, with other ports. Whoever answers at its address helps as well.
                self._reason.set()
                return await self._dial(self._base_address)()

        return dial


def _read(told: Mapping[str, Any], base: Address) -> tuple[list[int], dict[int, Address]]:
    """The owner of each shard, and each owner's address.

    Raises:
        KeyError, TypeError, ValueError, IndexError: It is no map that we know.
    """
    if told["hash"] != HASH:
        raise ValueError("another hash")
    owners = [-1] * told["shards"]
    addresses = {}
    for entry in told["workers"]:
        worker = int(entry["worker"])
        for shard in entry["shards"]:
            owners[shard] = worker
        addresses[worker] = _nearest([parse_address(text) for text in entry["rpc"]], base)
    return owners, addresses


def _nearest(addresses: list[Address], base: Address) -> Address:
    """The one to take of a process's addresses: of the same kind as the server's, and for TCP under the same name."""
    same = [address for address in addresses if type(address) is type(base)]
    if isinstance(base, TcpAddress):
        ports = {address.host: address.port for address in same if isinstance(address, TcpAddress)}
        return TcpAddress(base.host, ports.get(base.host) or next(iter(ports.values())))
    beside = [address for address in same if isinstance(address, UnixAddress) and address.path.startswith(base.path)]
    return beside[0] if beside else same[0]
