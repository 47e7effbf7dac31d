"""Tools that root runs in a directory of somebody else's: root is led nowhere, and what is made is that user's.

Whoever runs these tests as another user has only directories of their own: then all of it holds because the tools
follow no link where they remove or append, and because a user can do no more than that user can.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from idemactor.cli.exits import Exit
from idemactor.cli.identity import become_owner, way_to
from idemactor.errors import StartError
from idemactor.storage.directory import DataDirectory

AS_ROOT: Final = os.geteuid() == 0
OWNER: Final = 65_534 if AS_ROOT else os.geteuid()
TOOL_S: Final = 60.0
ROOT: Final = Path(__file__).parents[2]

WATCHED: Final = """
import os, sys
seen = set()
first = os.geteuid()
def watch(event, arguments):
    # Root's Python may be where nobody else can read it.
    if event == "import" and os.geteuid() != first:
        seen.add(arguments[0])
    if event in {"open", "os.mkdir", "os.scandir", "os.listdir", "os.rename", "os.remove"}:
        if str(arguments[0]).startswith(HOME):
            seen.add(os.geteuid())
sys.addaudithook(watch)
from idemactor.cli.main import main
try:
    main(sys.argv[1:], prog_name="idemactor")
finally:
    os.write(2, repr(seen).encode())
"""
"""Runs a tool, and says in the end as whom it looked at or made anything below ``HOME``, and what it imported late."""

SWAPPING: Final = """
import os, sys
from idemactor.cli.main import main
from idemactor.storage import backups
copy = backups.copy_files
def swap(source, made, *rest, **more):
    # What the owner of the directory that this is in may do at any moment.
    os.rename(made, f"{made}.away")
    os.symlink(VICTIM, made)
    return copy(source, made, *rest, **more)
backups.copy_files = swap
main(sys.argv[1:], prog_name="idemactor")
"""


def run(*arguments: object, script: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``idemactor``, or a script that does, to its end."""
    what = ["-m", "idemactor"] if script is None else ["-c", script]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *what, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S, env=environment, check=False)


def give(path: Path) -> Path:
    """Let something, and what is in it, be the other user's, where root may do that."""
    for each in (path, *path.rglob("*")):
        if AS_ROOT:
            os.chown(each, OWNER, OWNER, follow_symlinks=False)
    return path


@pytest.fixture(name="place")
def _place() -> Iterator[Path]:
    """A directory of whoever runs the tests, to which everybody can come."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    subprocess.run(["chmod", "-R", "u+rwX", path], check=True)
    shutil.rmtree(path)


@pytest.fixture(name="home")
def _home(place: Path) -> Path:
    """A directory of the other user's, with a data directory ``dn`` in it."""
    DataDirectory.open(place / "home" / "dn", 2).close()
    return give(place / "home")


@pytest.fixture(name="victim")
def _victim(place: Path) -> Path:
    """A directory that is nobody else's business, with a data directory's files in it."""
    path = place / "victim"
    DataDirectory.open(path, 2).close()
    (path / "files-0001").mkdir()
    (path / "precious").write_text("root's own\n")
    for each in (*path.iterdir(), path):
        each.chmod(0o500 if each.is_dir() else 0o400)
    return path


def state_of(path: Path) -> object:
    """Everything in a directory, and whose it is."""
    return {(str(each), each.lstat().st_uid, each.read_bytes() if each.is_file() else None) for each in path.rglob("*")}


def test_what_a_tool_makes_is_the_owners_and_made_by_the_owner(home: Path) -> None:
    watched = f"HOME = {str(home)!r}\n{WATCHED}"
    key = base64.b64encode(os.urandom(32)).decode()
    (home.parent / "key").write_text(f"{key}\n")
    config = home.parent / "c.toml"
    config.write_text(
        f'[server]\ndata_dir = "{home / "dn"}"\nencryption_key_file = "{home.parent / "key"}"\n'
        f'[log]\naudit_file = "{home / "audit"}"\n'
    )
    for arguments in (
        ["reencrypt", "--config", config],
        ["backup", home / "bk", "--data-dir", home / "dn"],
        ["restore", home / "bk", home / "new" / "deep"],
        ["reshard", home / "new" / "deep", "--to", "3"],
        ["export", home / "dn", "--output", home / "f", "--config", config],
        ["import", home / "imp", home / "f", "--config", config],
        ["export", home / "imp"],
        ["check", home / "imp"],
    ):
        done = run(*arguments, script=watched)
        assert (done.returncode, done.stderr) == (0, repr({OWNER})), (arguments, done)
    assert {"bk", "new", "f", "imp", "audit"} < set(os.listdir(home))
    assert {each.lstat().st_uid for each in (home, *home.rglob("*"))} == {OWNER}


def test_what_root_alone_may_read_is_read_before_and_the_line_names_who_ran_it(place: Path, home: Path) -> None:
    (place / "key").write_text("a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=\n")
    config = place / "c.toml"
    config.write_text(
        f'[server]\ndata_dir = "{home / "dn"}"\nencryption_key_file = "{place / "key"}"\n'
        f'[log]\naudit_file = "{home / "audit"}"\n'
    )
    for each in (place / "key", config):
        each.chmod(0o600)
    for arguments in (["reencrypt"], ["reshard", home / "dn", "--to", "3"]):
        done = run(*arguments, "--config", config)
        assert done.returncode == 0, done
    assert (home / "audit").stat().st_uid == OWNER
    lines = [json.loads(line) for line in (home / "audit").read_text().splitlines()]
    assert [(line["op"], line["result"]) for line in lines] == [("reencrypt", "done"), ("reshard", "done")]
    assert not AS_ROOT or {line["who"] for line in lines} == {"root"}


@pytest.mark.parametrize("arguments", [["backup", "bk", "--data-dir", "dn"], ["restore", "dn", "dr"]])
def test_a_link_in_the_place_of_what_is_being_made_leads_nowhere(
    home: Path, victim: Path, arguments: list[str]
) -> None:
    before = state_of(victim)
    where = [str(home / each) if each in {"bk", "dn", "dr"} else each for each in arguments]
    done = run(*where, script=f"VICTIM = {str(victim)!r}\n{SWAPPING}")
    assert done.returncode == Exit.USAGE, done
    assert any(each.name.endswith(".away") for each in home.rglob("*"))
    assert state_of(victim) == before


@pytest.mark.parametrize("planted", [("shard-0000.db", "shard-0001.db", "journal.db"), ("files-0001",)])
def test_links_that_were_planted_lead_nowhere(home: Path, victim: Path, planted: tuple[str, ...]) -> None:
    before = state_of(victim)
    for name in planted:
        (home / "dn" / name).unlink(missing_ok=True)
        (home / "dn" / name).symlink_to(victim if name == "files-0001" else victim / name)
    # A copy that nobody has served yet: whoever opens it first writes into every shard.
    meta = {"format": 2, "shards": 2, "created_ms": 1, "copied_ms": 2} | ({"files": 1} if len(planted) == 1 else {})
    (home / "dn" / "idemactor.json").write_text(json.dumps(meta))
    give(home)
    for arguments in (["reshard", home / "dn", "--to", "3"], ["check", home / "dn"]):
        done = run(*arguments)
        assert not AS_ROOT or done.returncode == Exit.USAGE, done
        assert state_of(victim) == before


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "second name"])
def test_a_line_goes_to_no_file_but_that_of_the_name(home: Path, victim: Path, kind: str) -> None:
    before = state_of(victim)
    audit, config = home / "audit", home.parent / "c.toml"
    config.write_text(f'[server]\ndata_dir = "{home / "dn"}"\n[log]\naudit_file = "{audit}"\n')
    if kind == "pipe":
        os.mkfifo(audit)
    elif kind == "second name":
        (home / "other").touch()
        os.link(home / "other", audit)
    else:
        audit.symlink_to(victim / ("precious" if kind == "link" else "nothing"))
    give(home)
    done = run("reshard", home / "dn", "--to", "3", "--config", config)
    assert done.returncode == Exit.USAGE
    assert f"log.audit_file {audit} cannot be written: it is a link, a pipe, or has a second name" in done.stderr
    assert state_of(victim) == before
    assert kind != "second name" or (home / "other").stat().st_size == 0


def does_nothing(home: Path) -> bool:
    """Whether nobody has to become anybody, since who runs the tests is not root."""
    if AS_ROOT:
        return False
    before = os.getresuid(), os.getresgid(), os.getgroups()
    become_owner(home, home)
    become_owner(None, home)
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
    return True


@pytest.mark.parametrize("name", ["shard-0001.db", "journal.db", "idemactor.json", "shard-0001.db-wal"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_root_who_stays_root_reads_nothing_that_a_link_leads_to(
    place: Path, home: Path, victim: Path, name: str, kind: str
) -> None:
    if does_nothing(home):
        return
    planted = home / "dn" / name
    planted.unlink(missing_ok=True)
    if kind == "link":
        planted.symlink_to(victim / name)
    else:
        os.mkfifo(planted)
    give(home)
    for arguments in (
        ["backup", place / "bk", "--data-dir", home / "dn"],
        ["restore", home / "dn", place / "new"],
        ["export", home / "dn", "--output", place / "f"],
    ):
        done = run(*arguments)
        assert done.returncode == Exit.USAGE
        assert f"{planted} is no regular file, and nobody may have put it there" in done.stderr
    assert set(os.listdir(place)) == {"home", "victim"}


def test_root_who_stays_root_reads_what_is_a_file(place: Path, home: Path) -> None:
    if does_nothing(home):
        return
    assert run("backup", place / "bk", "--data-dir", home / "dn").returncode == 0
    assert {each.lstat().st_uid for each in (place / "bk").rglob("*")} == {0}
    (home / "dn").rename(home / "aside")
    (home / "dn").symlink_to(home / "aside")
    give(home)
    done = run("backup", place / "bk2", "--data-dir", home / "dn")
    assert (done.returncode, f"{home / 'dn'} is no regular file" in done.stderr) == (Exit.USAGE, True)


def test_what_the_owner_cannot_use_is_named_with_the_way_out(place: Path, home: Path) -> None:
    if does_nothing(home):
        return
    DataDirectory.open(place / "secret", 2).close()
    for arguments in (
        ["restore", place / "secret", home / "new"],
        ["backup", home / "b", "--data-dir", place / "secret"],
    ):
        done = run(*arguments)
        assert done.returncode == Exit.USAGE
        said = f"idemactor: {place / 'secret'} cannot be read by nobody, as whom root works here, since {home}"
        assert done.stderr.startswith(said)
        assert f"give it to that user (chown -R nobody {place / 'secret'}), or name another place" in done.stderr
    shutil.chown(home / "dn" / "shard-0001.db", 0)
    done = run("check", home / "dn")
    assert f"{home / 'dn' / 'shard-0001.db'} cannot be read by nobody" in done.stderr
    # What is root's in a directory of somebody else's may be swapped by them as well.
    (home / "roots").mkdir()
    done = run("backup", home / "roots" / "b", "--data-dir", home / "dn")
    assert (done.returncode, os.listdir(home / "roots")) == (Exit.USAGE, [])
    (home / "roots").chmod(0o700)
    assert "cannot be" in run("reshard", home / "roots", "--to", "3").stderr


@pytest.mark.parametrize(("user", "group", "expected"), [(65_534, 0, 65_534), (54_321, 0, 54_321), (54_321, 7, 7)])
def test_nothing_of_root_is_left(home: Path, user: int, group: int, expected: int) -> None:
    if does_nothing(home):
        return
    os.chown(home, user, group)
    script = (
        "import os; from pathlib import Path; from idemactor.cli.identity import become_owner\n"
        f"become_owner(Path({str(home)!r}) / 'new')\nprint(os.getresuid(), os.getresgid(), os.getgroups())"
    )
    done = run(script=script)
    assert done.stdout == f"{(user,) * 3} {(expected,) * 3} {[expected]}\n", done


def test_the_way_ends_at_a_link_of_somebody_elses(place: Path, home: Path, victim: Path) -> None:
    (home / "link").symlink_to(victim)
    give(home)
    way = way_to(home / "link" / "files-0001")
    assert (way.there, way.link) == (home.resolve(), home.resolve() / "link")
    assert way.stranger is not None
    assert (way.stranger.user, way.owner) == (OWNER, way.stranger)
    if does_nothing(home):
        return
    assert way_to(victim / "x" / "y").stranger is None
    (place / "mine").symlink_to("home/../home/dn")
    way = way_to(place / "mine" / "files-0001")
    assert (way.there, way.link, way.stranger) == ((home / "dn").resolve(), None, way.owner)
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(StartError, match="go in a circle"):
        way_to(place / "a")
