"""One PostgreSQL for the tests of a process; each system has a database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.order_api.postgres import Postgres, postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running
