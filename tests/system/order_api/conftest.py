"""One PostgreSQL for the tests of a process; each system has a database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.order_api.postgres import Postgres
from examples.order_api.postgres import postgres as started


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with started() as running:
        yield running
