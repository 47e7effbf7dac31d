"""Normalisers: one spelling for what means the same, and an error for what they do not take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.fingerprint import Number, canonical
from idemactor.gateway.normalise import Normaliser, NotNormal, is_missing, is_nothing, normalised

NO_DECIMALS: list[object] = [
    "",
    "5%",
    "1,0",
    " 1",
    "0x1",
    "1e",
    "NaN",
    "+-1",
    "++1",
    "-+1",
    "--1",
    "+",
    "1e9999999",
    None,
    True,
    [],
]
NO_SYMBOLS: list[object] = ["", "BTC USDT", "A:B:C", "-USDT", "BTC--USDT", 7, None]
NO_UUIDS: list[object] = ["", "7d0f6f0e00004000800000000000abcd", "x" * 36, 7, None]


def one(normaliser: Normaliser, value: object) -> object:
    return normalised(value, [normaliser])


@pytest.mark.parametrize(
    ("normaliser", "value", "becomes"),
    [
        (Normaliser.TRIM, " \ta b\r\n", "a b"),
        (Normaliser.TRIM, 7, 7),
        (Normaliser.UPPER, "aßé", "Aßé"),
        (Normaliser.LOWER, "AÄı", "aÄı"),
        (Normaliser.UPPER, True, True),
        (Normaliser.UUID, "7D0F6F0E-0000-4000-8000-00000000ABCD", "7d0f6f0e-0000-4000-8000-00000000abcd"),
        (Normaliser.PERPETUAL, "BTCUSDT.P", "BTCUSDT"),
        (Normaliser.PERPETUAL, "BTCUSDT", "BTCUSDT"),
        *(
            (Normaliser.SYMBOL, form, "BTCUSDT")
            for form in ("BINANCE:BTCUSDT", "BTC-USDT", "btc/usdt", "BTC_USDT", "BTCUSDT", "x_1:btc-usdt")
        ),
        (Normaliser.SYMBOL, "BYBIT:BTCUSDT.P", "BTCUSDT.P"),
        (Normaliser.SYMBOL, "BTC-USDT-SWAP", "BTCUSDTSWAP"),
        (Normaliser.SYMBOL, "CME_MINI:ES1!", "ES1!"),
    ],
)
def test_what_becomes_of_values(normaliser: Normaliser, value: object, becomes: object) -> None:
    assert one(normaliser, value) == becomes


@pytest.mark.parametrize("value", ["1", "1.0", "+1", "10e-1", Number("1.00"), 1, 1.0, "01"])
def test_one_decimal_however_it_is_written(value: object) -> None:
    assert canonical(one(Normaliser.DECIMAL, value)) == canonical(1)


@pytest.mark.parametrize(
    ("normaliser", "value"),
    [
        *((Normaliser.DECIMAL, value) for value in NO_DECIMALS),
        *((Normaliser.SYMBOL, value) for value in NO_SYMBOLS),
        *((Normaliser.UUID, value) for value in NO_UUIDS),
    ],
)
def test_what_they_do_not_take(normaliser: Normaliser, value: object) -> None:
    with pytest.raises(NotNormal) as caught:
        one(normaliser, value)
    if isinstance(value, str) and value:
        assert value not in str(caught.value)


@pytest.mark.parametrize(
    "value", [None, "", " \t", b"", b"\r\n", {}, [], [{}, {"a": []}], {"a": {"b": None, "c": " "}}]
)
def test_what_is_nothing(value: object) -> None:
    assert is_nothing(value)


@pytest.mark.parametrize("value", [False, 0, Number("0.0"), "a", b"0", {"a": {"b": [0]}}, [None, "a"], "\u00a0"])
def test_what_is_something(value: object) -> None:
    assert not is_nothing(value)


def test_a_long_symbol_takes_no_long_time() -> None:
    """Quadratic matching would take minutes here."""
    for text in ("a" * 1_000_000 + " ", "a-" * 500_000, "_" * 1_000_000):
        with pytest.raises(NotNormal):
            one(Normaliser.SYMBOL, text)


def test_in_order() -> None:
    assert normalised(" binance:btc-usdt.p ", [Normaliser.TRIM, Normaliser.SYMBOL, Normaliser.PERPETUAL]) == "BTCUSDT"
    with pytest.raises(NotNormal):
        normalised(" btc ", [Normaliser.SYMBOL, Normaliser.TRIM])


@given(st.text() | st.integers() | st.booleans() | st.none(), st.sampled_from(Normaliser))
def test_to_normalise_twice_changes_nothing(value: object, normaliser: Normaliser) -> None:
    try:
        once = one(normaliser, value)
    except NotNormal:
        return
    if normaliser is not Normaliser.PERPETUAL:
        assert one(normaliser, once) == once


def test_missing() -> None:
    values: list[object] = [None, "", " \t\r\n", "a", 0, False, [], {}]
    assert [is_missing(value) for value in values] == [True] * 3 + [False] * 5
