"""What the tests with real processes share."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.system.process import Server, assert_calm

TWO_NAMESPACES: Final = """
[namespaces.default]

[namespaces.trade]
on_lease_expiry = "hold"

[namespaces.again]
on_doubt = "retry"

[namespaces.strict]
on_duplicate = "reject"
[namespaces.strict.fingerprint]
required = true
"""
"""Namespaces for the tests that need no settings of their own."""


@pytest.fixture
def seed() -> int:
    """The seed of a random test; ``SYSTEM_SEED`` replays one."""
    found = int(os.environ.get("SYSTEM_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    print(f"replay with SYSTEM_SEED={found}")
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of a module that leave it as they found it."""
    with Server(tmp_path_factory.mktemp("server"), TWO_NAMESPACES) as running:
        yield running
        assert running.alive, "a test took the server down"
        assert_calm(running)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory for a server of a test's own."""
    return tmp_path
