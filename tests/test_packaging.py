"""What the source tree ships: locks that cover what is declared and name no index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parent.parent
TABLE = tomllib.loads((PROJECT / "pyproject.toml").read_text())
DECLARED: dict[str, list[str]] = {
    "requirements.lock": [
        *TABLE["build-system"]["requires"],
        *TABLE["project"]["dependencies"],
        *TABLE["project"]["optional-dependencies"]["dev"],
    ],
    "requirements-gateways.lock": TABLE["dependency-groups"]["gateways"],
    "requirements-order-api.lock": TABLE["dependency-groups"]["order-api"],
}

each_lock = pytest.mark.parametrize("lock", DECLARED)


def text_of(lock: str) -> str:
    return (PROJECT / lock).read_text()


def locked(lock: str) -> dict[str, str]:
    pins = re.findall(r"^([a-z0-9-]+)==(\S+)", text_of(lock), re.MULTILINE)
    assert pins
    return dict(pins)


@each_lock
def test_everything_declared_is_locked_at_a_version_that_fits(lock: str) -> None:
    pins = locked(lock)
    for requirement in map(Requirement, DECLARED[lock]):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


@each_lock
def test_every_pin_has_its_hashes(lock: str) -> None:
    entries = re.split(r"^(?=[a-z])", text_of(lock), flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked(lock))
    for entry in entries:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


@each_lock
def test_the_lock_names_no_host_and_no_index(lock: str) -> None:
    assert "://" not in text_of(lock)
    assert not re.search(r"^\s*-(?!-hash=sha256:[0-9a-f]{64})", text_of(lock), re.MULTILINE)
