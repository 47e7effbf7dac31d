"""Whatever a worker asks of another, and is told, arrives as it was: same class, same values, same types."""

from __future__ import annotations

import enum
import random
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any, Final

import msgpack
import pytest

from idemactor.core.commands import Accept, Command, Reserve
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.policy import OnDuplicate
from idemactor.core.queries import Finding, Query
from idemactor.core.record import Outcome
from idemactor.core.replies import Completed, Reply
from idemactor.wire.crossing import answer_data, answer_of, command_data, command_of

ROUNDS: Final = 40
TEXTS: Final = ("", "k", "clé", "\ud800 lone", "名", "a" * 300, "\U0001f600")
NUMBERS: Final = (0, 1, -1, 255, 2**31, 2**53 - 1, 2**63 - 1)

COMMANDS: Final = (*typing.get_args(Command), *typing.get_args(Query))
ANSWERS: Final = (*typing.get_args(Reply), *typing.get_args(Finding))


def crossed(data: object) -> Any:
    packed = msgpack.packb(data, unicode_errors="surrogatepass")
    return msgpack.unpackb(packed, use_list=False, unicode_errors="surrogatepass")


def anything(hint: Any, chance: random.Random) -> Any:
    """A value of an annotation, found without the codec's own rules."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return anything(chance.choice(arguments), chance)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(anything(arguments[0], chance) for _ in range(chance.randrange(4)))
        return tuple(anything(argument, chance) for argument in arguments)
    if hint is type(None):
        return None
    if hint is bool:
        return chance.random() < 0.5
    if hint is int:
        return chance.choice(NUMBERS)
    if hint is str:
        return chance.choice(TEXTS)
    if hint is bytes:
        return chance.randbytes(chance.randrange(20))
    if issubclass(hint, enum.Enum):
        return chance.choice(list(hint))
    hints = typing.get_type_hints(hint)
    names = [field.name for field in fields(hint)] if is_dataclass(hint) else hint._fields
    return hint(*(anything(hints[name], chance) for name in names))


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same class all the way down: True is not 1, an enum's member is not its text."""
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("cls", COMMANDS, ids=lambda cls: cls.__name__)
def test_every_command_and_query_arrives_as_it_was(cls: type) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        command = anything(cls, chance)
        assert same(command_of(crossed(command_data(command))), command), f"seed {seed}: {command}"


@pytest.mark.parametrize("cls", ANSWERS, ids=lambda cls: cls.__name__)
def test_every_answer_arrives_as_it_was(cls: type) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        answer = anything(cls, chance)
        assert same(answer_of(crossed(answer_data(answer))), answer), f"seed {seed}: {answer}"


def test_what_a_waiting_reserve_asks_for_crosses_whole() -> None:
    asked = Reserve(
        Identity("acme", "trade", "order-1"),
        request_id="r",
        fingerprint=Fingerprint("v1:00", "caller"),
        lease_ms=1,
        window_ms=2,
        wait_ms=60_000,
        holder="h",
        on_duplicate=OnDuplicate.REJECT,
    )
    arrived = command_of(crossed(command_data(asked)))
    assert same(arrived, asked)
    assert isinstance(arrived, Reserve)
    assert isinstance(arrived.identity, Identity)


def test_outcomes_come_back_byte_by_byte() -> None:
    outcome = Outcome(200, (("x", "y"), ("x", "\udcff")), bytes(range(256)), omitted=False)
    assert same(command_of(crossed(command_data(Accept(Identity("t", "n", "k"), outcome=outcome)))).outcome, outcome)  # type: ignore[union-attr]
    told = Completed("op", 1, 2, outcome, rejected=True)
    assert same(answer_of(crossed(answer_data(told))), told)


def test_what_has_no_rule_is_refused() -> None:
    with pytest.raises(KeyError):
        command_data(Completed("op", 1, 2, None, rejected=False))  # type: ignore[arg-type]
