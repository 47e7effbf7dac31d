"""The order API with claim, delivery and replay in idemactor, killed in every window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.order_api.postgres import Postgres
from examples.order_api.processes import eventually
from examples.order_api.system import System, system
from examples.order_api.windows import order_of
from tests.system.order_api import checks


@pytest.fixture(scope="module")
def running(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system whose engine recognises ids."""
    with system("with_idemactor", "recognises", postgres, tmp_path_factory.mktemp("recognises")) as found:
        yield found


def test_an_order_however_often_it_is_sent(running: System) -> None:
    checks.surface(running)


def test_the_books_are_kept_where_nobody_asks(running: System) -> None:
    order_id = running.accepted("books", order_of("BOOKS"))["order_id"]
    # As after a crash between the dispatch and the note of it.
    running.sql("UPDATE orders SET operation_id = NULL WHERE id = %s RETURNING id", order_id)
    ended = "SELECT operation_id, outcome FROM orders WHERE id = %s AND ending = 'succeeded'"
    eventually(lambda: bool(running.sql(ended, order_id)), "the end is noted down")
    operation_id, outcome = running.sql(ended, order_id)[0]
    assert outcome == running.answer_of(operation_id)
    assert running.executed("BOOKS") == 1


def test_the_windows_of_a_crash(postgres: Postgres, tmp_path: Path) -> None:
    checks.windows("with_idemactor", postgres, tmp_path)


def test_crashes_at_random(postgres: Postgres, tmp_path: Path, seed: int) -> None:
    checks.killed_at_random("with_idemactor", postgres, tmp_path, seed)
