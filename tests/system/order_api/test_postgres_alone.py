"""The order API with its claim in PostgreSQL alone, its relay and its reconciler, killed in every window."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.order_api import outbox
from examples.order_api.postgres import Postgres
from examples.order_api.postgres_alone import accepting
from examples.order_api.processes import eventually
from examples.order_api.system import ENDED, System, system
from examples.order_api.windows import order_of
from tests.system.order_api import checks


@pytest.fixture(scope="module")
def running(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system whose engine recognises ids."""
    with system("postgres_alone", "recognises", postgres, tmp_path_factory.mktemp("recognises")) as found:
        yield found


def test_an_order_however_often_it_is_sent(running: System) -> None:
    checks.surface(running)


def test_the_relay_looks_even_where_nobody_called(running: System) -> None:
    # What commits without a notification, as one that was sent while nobody listened.
    unheard = outbox.ACCEPT.replace("pg_notify('outbox', '')", "1")
    assert unheard != outbox.ACCEPT
    order_id, body = uuid.uuid4(), b'{"symbol": "UNHEARD"}'
    with running.postgres.connect(running.database) as connection:
        connection.execute(unheard, accepting(order_id, "unheard", "UNHEARD", body))
    eventually(lambda: running.executed("UNHEARD") == 1, "it is found by the next look")
    eventually(lambda: _state(running, order_id) == "succeeded", "its end is stored")


def _state(running: System, order_id: uuid.UUID) -> object:
    return running.sql("SELECT ending FROM orders WHERE id = %s", order_id)[0][0]


def test_a_late_relay_changes_nothing(running: System) -> None:
    running.switch("busy")
    order_id = running.accepted("late", order_of("LATE"))["order_id"]
    eventually(lambda: running.next_try(order_id)[1] > 1, "somebody has tried")
    seq, attempt = running.sql("SELECT seq, attempt FROM outbox WHERE order_id = %s", order_id)[0]
    stale = {"seq": seq, "attempt": attempt - 1}
    with running.postgres.connect(running.database) as connection:
        for statement, told in (
            (outbox.END, {"ending": "failed", "outcome": b""}),
            (outbox.POSTPONE, {"phase": "in_doubt", "delay_ms": 0, "perhaps_sent": True, "reason": "stale"}),
        ):
            assert connection.execute(statement, stale | told).rowcount == 0
    running.switch("fill")
    eventually(lambda: running.look(order_id)["state"] in ENDED, "it goes on")
    assert running.look(order_id)["state"] == "succeeded"


def test_the_windows_of_a_crash(postgres: Postgres, tmp_path: Path) -> None:
    checks.windows("postgres_alone", postgres, tmp_path)


def test_crashes_at_random(postgres: Postgres, tmp_path: Path, seed: int) -> None:
    checks.killed_at_random("postgres_alone", postgres, tmp_path, seed)
