"""What the source tree ships: a lock that covers what is declared and names no index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parent.parent
LOCK = (PROJECT / "requirements.lock").read_text()


def locked() -> dict[str, str]:
    pins = re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK, re.MULTILINE)
    assert pins
    return dict(pins)


def test_everything_declared_is_locked_at_a_version_that_fits() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    declared = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["dev"],
    ]
    pins = locked()
    for requirement in map(Requirement, declared):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_every_pin_has_its_hashes() -> None:
    entries = re.split(r"^(?=[a-z])", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked())
    for entry in entries:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_the_lock_names_no_host_and_no_index() -> None:
    assert "://" not in LOCK
    assert not re.search(r"^\s*-(?!-hash=sha256:[0-9a-f]{64})", LOCK, re.MULTILINE)
