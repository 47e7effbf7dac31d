"""Going straight to the owner of a key: the map is a hint, and without one the server's address does as well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import pytest
from anyio import TASK_STATUS_IGNORED
from anyio.abc import ByteStream, TaskStatus

from idemactor.client.address import Address, TcpAddress, UnixAddress, parse_address
from idemactor.client.errors import InvalidRequest, Unreachable
from idemactor.client.fleet import Fleet
from idemactor.client.flight import Answer, Flight
from idemactor.client.link import Dial, Link
from idemactor.errors import Code
from idemactor.server.shard_map import ShardMap
from tests.workers.rig import SHARDS

BASE = TcpAddress("db", 1)
TWO = ShardMap(SHARDS, 0, ((), ()), (("unix:/u.0", "0.0.0.0:10"), ("unix:/u.1", "0.0.0.0:11"))).body("default")


class Wire:
    """A stand-in for a link: answers with who it is, and the base with a map too."""

    where, trouble = "db:1", None

    def __init__(self, dial: Dial, answers: list[Answer]) -> None:
        self.dial = dial
        self.carried: list[Flight] = []
        self._answers = answers

    async def exchange(self, flight: Flight) -> Answer:
        await anyio.lowlevel.checkpoint()
        self.carried.append(flight)
        if flight.method != "shards":
            return Answer(None, self)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await anyio.sleep_forever()


class Rig:
    """A fleet of wires."""

    def __init__(self, *answers: Answer, broken: set[Address] | None = None, base: Address = BASE) -> None:
        self.wires: list[Wire] = []
        self.dialled: list[Address] = []
        self.broken = broken or set()
        self._answers = list(answers)
        self.fleet = Fleet(base, self._dial, self._link)

    def _dial(self, address: Address) -> Dial:
        async def dial() -> ByteStream:
            self.dialled.append(address)
            if address in self.broken:
                raise ConnectionRefusedError
            return cast("ByteStream", address)

        return dial

    def _link(self, dial: Dial) -> Link:
        self.wires.append(Wire(dial, self._answers))
        return cast("Link", self.wires[-1])

    async def number_of(self, **params: Any) -> int:
        """Which link carries a call; 0 is that to the server's address."""
        answer = await self.fleet.exchange(Flight("get", {"namespace": "default", **params}))
        assert answer is not None
        return self.wires.index(answer.result)

    async def reached(self) -> list[Address]:
        """Where the owners' links lead."""
        return [cast("Address", await wire.dial()) for wire in self.wires[1:]]

    async def learnt(self, maps: int = 1) -> None:
        with anyio.fail_after(5):
            while sum(flight.method == "shards" for flight in self.wires[0].carried) < maps:
                await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()


def with_rig(rig: Callable[[], Rig], test: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        made = rig()
        async with anyio.create_task_group() as tasks:
            await tasks.start(made.fleet.run)
            await test(made)
            tasks.cancel_scope.cancel()

    anyio.run(main, backend="trio")


def test_a_key_goes_to_its_owner_once_the_map_is_known() -> None:
    async def test(rig: Rig) -> None:
        assert await rig.number_of(key="k0") == 0
        await rig.learnt()
        numbers = {key: await rig.number_of(key=key) for key in (f"k{n}" for n in range(40))}
        assert set(numbers.values()) == {1, 2}
        assert numbers == {key: await rig.number_of(key=key) for key in numbers}
        for params in ({}, {"key": b"k"}, {"key": "\ud800"}, {"key": "k", "namespace": None}):
            assert await rig.number_of(**params) == 0
        assert await rig.reached() == [TcpAddress("db", 10), TcpAddress("db", 11)]

    with_rig(lambda: Rig(Answer(None, TWO)), test)


def test_an_owner_that_cannot_be_reached_is_asked_by_way_of_the_others_and_the_map_anew() -> None:
    moved = {**TWO, "workers": [{**entry, "rpc": ["db:77"]} for entry in cast("list[Any]", TWO["workers"])]}

    async def test(rig: Rig) -> None:
        await rig.number_of(key="k")
        await rig.learnt()
        assert await rig.reached() == [BASE, TcpAddress("db", 11)]
        await rig.learnt(maps=2)
        assert await rig.reached() == [TcpAddress("db", 77)] * 2

    with_rig(lambda: Rig(Answer(None, TWO), Answer(None, moved), broken={TcpAddress("db", 10)}), test)


def test_a_server_that_is_away_is_asked_again_for_its_map() -> None:
    async def test(rig: Rig) -> None:
        await rig.number_of(key="k")
        await rig.learnt(maps=3)
        assert await rig.number_of(key="k") > 0

    away = Answer(Unreachable("away"))
    with_rig(lambda: Rig(away, away, Answer(None, TWO)), test)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(InvalidRequest(Code.INVALID_REQUEST, "unknown method")),
        *(
            Answer(None, told)
            for told in (
                None,
                {},
                {**TWO, "hash": "md5"},
                {**TWO, "shards": "4"},
                {**TWO, "shards": 1},
                {**TWO, "workers": [{}]},
                {**TWO, "workers": [{"worker": 0, "shards": [0], "rpc": ["nonsense"]}]},
                ShardMap(4, 0, ((),), (("db:10",),)).body("default"),
            )
        ),
    ],
)
def test_what_is_no_map_for_us_leaves_everything_as_it_was(answer: Answer) -> None:
    async def test(rig: Rig) -> None:
        await rig.number_of(key="k")
        await rig.learnt()
        assert {await rig.number_of(key=f"k{n}") for n in range(9)} == {0}
        assert len(rig.wires) == 1

    with_rig(lambda: Rig(answer), test)


def test_unix_sockets_lie_beside_the_servers_own() -> None:
    base = UnixAddress("/run/r.sock")
    rpc = (("db:1", "unix:/x.0", "unix:/run/r.sock.0"), ("db:2", "unix:/x.1", "unix:/run/r.sock.1"))
    told = ShardMap(SHARDS, 0, ((), ()), rpc).body("default")

    async def test(rig: Rig) -> None:
        await rig.number_of(key="k")
        await rig.learnt()
        assert await rig.reached() == [parse_address(f"unix:/run/r.sock.{number}") for number in range(2)]

    with_rig(lambda: Rig(Answer(None, told), base=base), test)
