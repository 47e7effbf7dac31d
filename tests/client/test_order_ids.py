"""Names of orders that are made from operation ids."""

from __future__ import annotations

import re
import uuid
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.client import binance_client_order_id, bybit_order_link_id, client_order_id
from idemactor.client.order_ids import BASE36, BASE62
from idemactor.core.ids import ENTROPY_BITS, uuid7

OPERATION: Final = "01993c5e-7d2a-7c41-9f0b-3a5d2c8e4b10"
BINANCE: Final = re.compile(r"^[\.A-Z\:/a-z0-9_-]{1,36}$")
BYBIT: Final = re.compile(r"^[0-9a-zA-Z_-]{1,36}$")

operations = st.builds(uuid7, st.integers(0, 2**48 - 1), st.integers(0, 2**ENTROPY_BITS - 1))
prefixes = st.text(alphabet="abXY09-_", max_size=14)


def test_without_a_prefix_the_exchanges_get_the_operation_id_itself() -> None:
    assert binance_client_order_id(OPERATION) == OPERATION
    assert bybit_order_link_id(OPERATION) == OPERATION


def test_known_values() -> None:
    assert client_order_id("00000000-0000-0000-0000-000000000000") == "0" * 22
    assert client_order_id("00000000-0000-0000-0000-00000000003e") == "0" * 20 + "10"
    assert client_order_id("ffffffff-ffff-ffff-ffff-ffffffffffff", alphabet="01", max_chars=128) == "1" * 128
    assert client_order_id("ffffffff-ffff-ffff-ffff-ffffffffffff", alphabet=BASE36) == "f5lxx1zz5pnorynqglhzmsp33"
    assert binance_client_order_id(OPERATION, prefix="x-DESK1234:A/").startswith("x-DESK1234:A/")


@given(operations, prefixes, operations, prefixes)
def test_one_name_for_one_operation_and_prefix(one: str, its: str, other: str, others: str) -> None:
    for make, allowed in ((binance_client_order_id, BINANCE), (bybit_order_link_id, BYBIT)):
        name = make(one, prefix=its)
        assert allowed.match(name)
        assert make(one, prefix=its) == name
        assert (name == make(other, prefix=others)) == ((one, its) == (other, others))


@given(operations, st.sampled_from([BASE62, BASE36, "01", "0123456789abcdef"]))
def test_the_operation_can_be_read_back(operation: str, alphabet: str) -> None:
    name = client_order_id(operation, alphabet=alphabet, max_chars=128)
    value = 0
    for digit in name:
        value = value * len(alphabet) + alphabet.index(digit)
    assert str(uuid.UUID(int=value)) == operation


@given(operations, operations)
def test_names_sort_as_their_operations_do(one: str, other: str) -> None:
    assert (client_order_id(one) < client_order_id(other)) == (one < other)


@pytest.mark.parametrize("text", ["", OPERATION.upper(), OPERATION.replace("-", ""), f"{OPERATION}\n", "order-17"])
def test_what_is_no_operation_id(text: str) -> None:
    for make in (client_order_id, binance_client_order_id, bybit_order_link_id):
        with pytest.raises(ValueError, match="no operation id"):
            make(text)


def test_what_does_not_fit() -> None:
    assert len(client_order_id(OPERATION, prefix="p" * 14)) == 36
    with pytest.raises(ValueError, match="leaves 14 for a prefix"):
        client_order_id(OPERATION, prefix="p" * 15)
    with pytest.raises(ValueError, match="leaves 14 for a prefix"):
        binance_client_order_id(OPERATION, prefix="p" * 15)
    with pytest.raises(ValueError, match="it takes 22 without one"):
        client_order_id(OPERATION, max_chars=20)


@pytest.mark.parametrize("alphabet", ["", "0", "0123450"])
def test_what_is_no_alphabet(alphabet: str) -> None:
    with pytest.raises(ValueError, match="alphabet"):
        client_order_id(OPERATION, alphabet=alphabet)


def test_characters_that_an_exchange_refuses() -> None:
    with pytest.raises(ValueError, match="Binance"):
        binance_client_order_id(OPERATION, prefix="über")
    with pytest.raises(ValueError, match="Bybit"):
        bybit_order_link_id(OPERATION, prefix="a:b")
