"""Functions that run once for each key."""

from __future__ import annotations

from decimal import Decimal

import pytest
import trio

from idemactor.client import Client, InDoubtError, InFlightError, OutcomeMissing, current_hold
from idemactor.client.once import KEY_PREFIX, derived_key


def place(symbol: str, quantity: float, *, tags: tuple[str, ...] = ()) -> None:
    """A function to make keys of."""


def cancel(symbol: str, quantity: float, *, tags: tuple[str, ...] = ()) -> None:
    """Another one with the same arguments."""


def test_the_key_is_of_the_function_and_the_meaning_of_its_arguments() -> None:
    key = derived_key(place, ("BTC", 1), {})
    assert key.startswith(KEY_PREFIX)
    assert len(key) <= 256
    assert (
        key
        == derived_key(place, (), {"quantity": 1.0, "symbol": "BTC"})
        == derived_key(
            place,
            (
                "BTC",
                1,
            ),
            {"tags": ()},
        )
    )
    others = [
        derived_key(cancel, ("BTC", 1), {}),
        derived_key(place, ("BTC", 2), {}),
        derived_key(place, ("btc", 1), {}),
        derived_key(place, ("BTC", 1), {"tags": ("x",)}),
        derived_key(place, ("BTC", "1"), {}),
    ]
    assert len({key, *others}) == 6


def test_arguments_without_a_canonical_form_want_a_key() -> None:
    with pytest.raises(TypeError, match="key="):
        derived_key(place, ("BTC", Decimal(1)), {})


async def test_repeats_get_what_the_first_returned() -> None:
    ran: list[str] = []
    async with Client.in_memory() as client:

        @client.once("trade")
        async def order(symbol: str, quantity: int = 1) -> dict[str, object]:
            ran.append(current_hold().operation_id)
            return {"symbol": symbol, "quantity": quantity}

        first = await order("BTC")
        assert first == {"symbol": "BTC", "quantity": 1}
        assert await order(symbol="BTC", quantity=1) == first
        assert len(ran) == 1
        await order("ETH")
        assert len(set(ran)) == 2
        with pytest.raises(LookupError):
            current_hold()


async def test_a_failure_leaves_it_in_doubt_unless_it_proves_that_nothing_happened() -> None:
    async with Client.in_memory() as client:

        @client.once("trade", key=lambda number: f"n{number}", not_executed=ConnectionRefusedError)
        async def order(number: int) -> int:
            raise ConnectionRefusedError if number == 1 else RuntimeError

        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                await order(1)
        with pytest.raises(RuntimeError):
            await order(2)
        with pytest.raises(InDoubtError):
            await order(2)


async def test_two_at_once() -> None:
    async with Client.in_memory() as client:
        go = trio.Event()

        @client.once("trade", wait=True)
        async def patient(number: int) -> int:
            await go.wait()
            return number

        @client.once("trade", key=lambda: "k")
        async def hasty() -> None:
            with pytest.raises(InFlightError):
                await hasty()

        await hasty()
        found: list[int] = []

        async def call() -> None:
            found.append(await patient(7))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            go.set()
        assert found == [7, 7, 7]


async def test_what_cannot_be_kept_is_returned_once_and_missed_afterwards() -> None:
    async with Client.in_memory() as client:

        @client.once("trade", key=lambda: "k")
        async def order() -> object:
            return {1, 2}

        assert await order() == {1, 2}
        with pytest.raises(OutcomeMissing):
            await order()


async def test_an_encoding_of_ones_own() -> None:
    async with Client.in_memory() as client:

        @client.once("trade", key=lambda: "k", encode=str.encode, decode=bytes.decode)
        async def order() -> str:
            return "é"

        assert [await order(), await order()] == ["é", "é"]
