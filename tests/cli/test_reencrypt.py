"""After it, the first key is enough, nothing is in clear any more, and everything is as it was."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import apsw
import pytest
import trio
from click.testing import CliRunner

from idemactor.cli.exits import Exit
from idemactor.cli.main import main
from idemactor.core.delivery import Intent
from idemactor.core.record import Incident, Outcome
from idemactor.errors import StartError
from idemactor.shard.start import open_engines
from idemactor.storage import resealing
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.directory import DataDirectory
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite_file import ShardFile
from tests.storage.filled import killed
from tests.storage.samples import NOW, committed, dispatched, event, name

OLD: Final = b"o" * 32
NEW: Final = b"n" * 32
SECRET: Final = b"the card number is 4111"
OUTCOME: Final = Outcome(200, (("x", "y"),), SECRET)
INTENT: Final = Intent("text/plain", SECRET, ())
MANY: Final = 300
"""More than are written at a time."""


def keyring(keys: Sequence[bytes]) -> Keyring | None:
    return Keyring(keys) if keys else None


def fill(path: Path, keys: Sequence[bytes], kept_as: Path | None = None) -> None:
    """Data in a directory; ``kept_as``: a copy of it as the end of its process would leave it."""

    async def run() -> None:
        with DataDirectory.open(path, 1) as directory:
            async with open_engines(directory, "full", keys=keyring(keys)) as [(engine, _)]:
                incident = Incident(name("k"), "operation", 9, None, NOW, OUTCOME)
                entries = [committed(n, name(f"k{n}"), outcome=OUTCOME) for n in range(10, 10 + MANY)]
                batch = Batch(NOW, 9 + MANY, [*entries, dispatched(1, name("d"))], incidents=[incident])
                batch.intents[1] = INTENT
                batch.events.append(event(7, name("k"), body=SECRET))
                assert await engine.commit(batch) is CommitResult.OK
                if kept_as is not None:
                    killed(path, kept_as)

    trio.run(run)


def has_everything(path: Path, keys: Sequence[bytes]) -> None:
    async def run() -> None:
        with DataDirectory.open(path, 1) as directory:
            async with open_engines(directory, "full", keys=keyring(keys)) as [(engine, _)]:
                found = await engine.load([name(f"k{n}") for n in range(10, 10 + MANY)])
                assert [entry.record.outcome for entry in found.values() if entry.record] == [OUTCOME] * MANY
                assert await engine.load_intents([1]) == {1: INTENT}
                assert (await engine.load_events([7]))[7].content.body == SECRET
                (stored,) = await engine.list_incidents("default", "trade", 0, 10)
                assert stored.incident.outcome == OUTCOME

    trio.run(run)


def configured(path: Path, keys: Sequence[bytes]) -> Path:
    file = path.with_name("keys")
    file.write_text("\n".join(base64.b64encode(key).decode() for key in keys))
    config = path.with_name("config.toml")
    config.write_text(f'[server]\ndata_dir = "{path}"\nencryption_key_file = "{file}"\n')
    return config


@pytest.mark.parametrize("before", [(), (OLD,)])
def test_afterwards_the_first_key_is_enough_and_nothing_is_in_clear(tmp_path: Path, before: Sequence[bytes]) -> None:
    path = tmp_path / "data"
    fill(path, before)
    config = configured(path, (NEW, *before))
    result = CliRunner().invoke(main, ["reencrypt", "--config", str(config)])
    assert result.exit_code == 0, result.output
    assert f"anew: {MANY + 3}, and batches that the journal alone had: 0;" in result.output
    assert not [file.name for file in path.iterdir() if SECRET in file.read_bytes()]
    has_everything(path, (NEW,))
    # Again, there is nothing left to do.
    assert "anew: 0" in CliRunner().invoke(main, ["reencrypt", "--config", str(config)]).output


@pytest.mark.parametrize("before", [(), (OLD,)])
def test_what_the_journal_alone_had_is_told_as_well(tmp_path: Path, before: Sequence[bytes]) -> None:
    """Opening the files brings it in under the first key: nothing is left to be done then, and yet much was."""
    fill(tmp_path / "running", before, kept_as=tmp_path / "data")
    config = configured(tmp_path / "data", (NEW, *before))
    result = CliRunner().invoke(main, ["reencrypt", "--config", str(config), "--json"])
    assert json.loads(result.output) == {
        "data_dir": str(tmp_path / "data"),
        "written": 0,
        "brought_in": 1,
    }
    has_everything(tmp_path / "data", (NEW,))


def test_a_directory_that_is_named_is_meant_and_not_the_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that says serve --data-dir leaves the configuration with another one, or with none."""
    for path in (tmp_path / "named", tmp_path / "data"):
        fill(path, ())
    config = configured(tmp_path / "data", (NEW,))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["reencrypt", "--config", str(config), "--data-dir", "named"])
    assert (result.exit_code, result.output.startswith(f"{tmp_path / 'named'}: ")) == (0, True), result.output
    holding = {file.parent.name for file in tmp_path.glob("*/*") if SECRET in file.read_bytes()}
    assert holding == {"data"}


def test_without_the_old_key_it_says_so_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    fill(path, (OLD,))
    result = CliRunner().invoke(main, ["reencrypt", "--config", str(configured(path, (NEW,)))])
    assert result.exit_code == Exit.USAGE
    assert "not among those" in result.output
    has_everything(path, (OLD,))


def test_a_full_disk_is_no_damage_and_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    fill(path, ())

    def no_room(*_: object, **__: object) -> None:
        raise apsw.FullError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(resealing, "_update", no_room)
        result = CliRunner().invoke(main, ["reencrypt", "--config", str(configured(path, (NEW,)))])
    assert result.exit_code == Exit.USAGE
    assert f"{path / 'shard-0000.db'} cannot be written: the disk is full; free some space" in result.output
    has_everything(path, ())


@pytest.mark.parametrize(
    ("error", "exit_code", "said"),
    [
        (apsw.FullError("database or disk is full"), Exit.USAGE, "{} cannot be written: the disk is full"),
        (apsw.IOError("disk I/O error"), Exit.DAMAGED, "{} cannot be written: disk I/O error"),
        (None, Exit.DAMAGED, "another program reads the files"),
    ],
)
def test_why_the_files_cannot_be_wiped_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, exit_code: Exit, said: str
) -> None:
    path = tmp_path / "data"
    fill(path, ())

    def not_emptied(file: ShardFile) -> bool:
        file.last_error = error
        return False

    monkeypatch.setattr(ShardFile, "empty_wal", not_emptied)
    result = CliRunner().invoke(main, ["reencrypt", "--config", str(configured(path, (NEW,)))])
    assert result.exit_code == exit_code
    assert said.format(path) in result.output


def test_a_running_server_or_no_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    fill(path, ())
    (tmp_path / "bare.toml").write_text(f'[server]\ndata_dir = "{path}"\n')
    result = CliRunner().invoke(main, ["reencrypt", "--config", str(tmp_path / "bare.toml")])
    assert (result.exit_code, "encryption_key_file" in result.output) == (Exit.USAGE, True)
    with DataDirectory.open(path):
        result = CliRunner().invoke(main, ["reencrypt", "--config", str(configured(path, (NEW,)))])
    assert (result.exit_code, "in use" in result.output) == (Exit.USAGE, True)
    with pytest.raises(StartError):
        DataDirectory.open(path, 2)
