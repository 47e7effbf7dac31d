"""The commands that work on files: what they write, how they end, and what they show meanwhile."""

from __future__ import annotations

import atexit
import base64
import contextlib
import errno
import json
import os
import pty
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from idemactor.cli import export as export_module
from idemactor.cli import interrupts, reencrypt
from idemactor.cli import main as main_module
from idemactor.cli.exits import MEANINGS, Exit
from idemactor.cli.output import moment, now_ms
from idemactor.cli.tools import TerminalProgress
from idemactor.errors import StartError, StorageError
from idemactor.storage import backups, check, exporting, importing, resharding
from idemactor.storage.directory import DataDirectory
from idemactor.storage.lines import End
from tests.cli.fake_client import invoke
from tests.storage.test_reading import digests

TOOLS = ("backup", "restore", "reshard", "reencrypt", "export", "import")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    DataDirectory.open(tmp_path / "data", 2).close()
    return tmp_path / "data"


@pytest.mark.parametrize("name", TOOLS)
def test_every_help_page_has_an_example_and_the_exit_codes(name: str) -> None:
    page = invoke(name, "--help").stdout
    assert f"idemactor {name}" in page.partition("Example:")[2]
    assert f"Exit codes:\n      0  {MEANINGS[Exit.DONE]}\n" in page
    assert "--json" in page


def test_one_after_the_other(data: Path, tmp_path: Path) -> None:
    made = json.loads(invoke("backup", str(tmp_path / "b"), "--data-dir", str(data), "--json").stdout)
    assert [shard["shard"] for shard in made["shards"]] == [0, 1]
    restored = json.loads(invoke("restore", str(tmp_path / "b"), str(tmp_path / "r"), "--json").stdout)
    assert (restored["shards"], restored["taken_ms"]) == (2, made["taken_ms"])
    done = json.loads(invoke("reshard", str(tmp_path / "r"), "--to", "3", "--json").stdout)
    assert (done["changed"], done["shards"], done["entries"]) == (True, 3, 0)
    assert json.loads(invoke("reshard", str(tmp_path / "r"), "--to", "3", "--json").stdout)["changed"] is False
    file = tmp_path / "all.jsonl"
    assert json.loads(invoke("export", str(tmp_path / "r"), "--output", str(file), "--json").stdout)["entries"] == 0
    assert file.stat().st_mode & 0o777 == 0o600
    came = json.loads(invoke("import", str(tmp_path / "n"), str(file), "--json").stdout)
    assert (came["entries"], came["shards"]) == (0, 3)
    config = tmp_path / "c.toml"
    config.write_text("[server]\nshards = 5\n")
    for name, options, shards in (
        ("n5", ["--config", str(config)], 5),
        ("n2", ["--config", str(config), "--shards", "2"], 2),
        ("n", ["--config", str(config)], 3),
    ):
        came = json.loads(invoke("import", str(tmp_path / name), str(file), *options, "--json").stdout)
        assert came["shards"] == shards


def test_a_backup_is_of_the_servers_directory(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is named, else what the server is told, else its default; the report says which one it was."""
    DataDirectory.open(tmp_path / "configured", 3).close()
    DataDirectory.open(tmp_path / "environment", 5).close()
    config = tmp_path / "c.toml"
    config.write_text(f'[server]\ndata_dir = "{tmp_path / "configured"}"\n')
    monkeypatch.chdir(tmp_path)
    for number, (arguments, environment, source, shards) in enumerate(
        (
            (["--config", str(config)], {}, "configured", 3),
            (["--config", str(config), "--data-dir", "data"], {}, "data", 2),
            ([], {}, "data", 2),
            ([], {"IDEMACTOR_SERVER__DATA_DIR": "environment"}, "environment", 5),
        )
    ):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        told = json.loads(invoke("backup", f"b{number}", *arguments, "--json").stdout)
        assert (told["source"], len(told["shards"])) == (str(tmp_path / source), shards)
        assert f"shards of {tmp_path / source}, " in invoke("backup", f"again{number}", *arguments).stdout
    assert data.is_dir()


def test_people_are_told_in_words(data: Path, tmp_path: Path) -> None:
    assert "2 shards" in invoke("backup", str(tmp_path / "b"), "--data-dir", str(data)).stdout
    lines = invoke("restore", str(tmp_path / "b"), str(data), "--replace").stdout
    assert "may be lost" in lines
    assert f"the files of before are kept in {data}" in lines
    assert "each compared" in invoke("reshard", str(data), "--to", "3").stdout
    assert "has 3 shards already" in invoke("reshard", str(data), "--to", "3").stdout
    assert "0 entries" in invoke("export", str(data), "--output", str(tmp_path / "x")).stdout
    assert "0 keys" in invoke("import", str(tmp_path / "n"), str(tmp_path / "x")).stdout


def test_people_are_told_where_the_end_of_a_restore_is_not_known(data: Path, tmp_path: Path) -> None:
    invoke("backup", str(tmp_path / "b"), "--data-dir", str(data))
    assert "can be read" not in invoke("restore", str(tmp_path / "b"), str(data), "--replace").stdout
    (data / "files-0001" / "journal.db").unlink()
    lines = invoke("restore", str(tmp_path / "b"), str(data), "--replace").stdout
    assert "the end is the present: of what was replaced, not all can be read: files-0001/journal.db\n" in lines


def test_the_moment_that_people_are_told_is_not_before_the_last_command(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("backup", str(tmp_path / "b"), "--data-dir", str(data))
    told = backups.restore(tmp_path / "b", tmp_path / "r", lambda *_: None)
    until_ms = told.until_ms // 1_000 * 1_000 + 1
    monkeypatch.setattr(backups, "restore", lambda *_, **__: replace(told, until_ms=until_ms))
    assert moment(until_ms + 999, now_ms()).partition("(")[2] in invoke("restore", "b", "r").stdout


CALLS: dict[str, tuple[Any, str, list[str]]] = {
    "backup": (backups, "back_up", ["x", "--data-dir", "y"]),
    "restore": (backups, "restore", ["x", "y"]),
    "reshard": (resharding, "reshard", ["x", "--to", "2"]),
    "export": (exporting, "export", ["x", "--output", "z"]),
    "import": (importing, "import_lines", ["x", os.devnull]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StartError("no such place"), Exit.USAGE, "REFUSED"),
        (OSError("no such place"), Exit.USAGE, "REFUSED"),
        (StorageError("no such place"), Exit.DAMAGED, "DAMAGED"),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_what_stops_it_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException, code: int, said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    module, function, arguments = CALLS[name]

    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module, function, failing)
    result = invoke(name, *arguments, "--json")
    assert result.exit_code == code
    assert not list(tmp_path.iterdir())
    if said is not None:
        told = json.loads(result.stdout)
        assert told["code"] == said
        # An export says of its destination what the operating system refuses.
        assert told["detail"] in ("no such place", "z cannot be used: no such place")
        assert result.stderr == f"idemactor: {told['detail']}\n"


def test_sigterm_is_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def terminated(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(backups, "back_up", terminated)
    assert invoke("backup", str(tmp_path / "b")).exit_code == 130
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("backup", "new", "--data-dir", "nowhere"), "data directory"),
        (("restore", "nowhere", "new"), "backup"),
        (("check", "nowhere"), "data directory"),
        (("export", "nowhere"), "data directory"),
        (("reshard", "nowhere", "--to", "2"), "data directory"),
    ],
)
def test_what_is_not_there_is_not_said_to_lack_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == Exit.USAGE
    assert result.stderr.endswith(f"nowhere is not there; name a {what} that is\n")
    assert not list(tmp_path.iterdir())
    (tmp_path / "nowhere").mkdir()
    assert f"has no idemactor.json: it is not a {what}, or was never finished" in invoke(*arguments).stderr


def test_what_cannot_be_imported_from_is_said(tmp_path: Path) -> None:
    for source, said in (
        (tmp_path, f"{tmp_path} is a directory; name the file that an export wrote"),
        (tmp_path / "x", f"{tmp_path / 'x'} cannot be read: No such file or directory"),
    ):
        done = invoke("import", str(tmp_path / "new"), str(source))
        assert (done.exit_code, done.stderr) == (Exit.USAGE, f"idemactor: {said}\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_check_that_is_interrupted_found_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(check, "check_directory", lambda *_: signal.raise_signal(number))
    assert invoke("check", str(tmp_path)).exit_code == 130


EARLY = """
import os, sys
import idemactor.__main__ as entry
number = int(sys.argv.pop(1))
class Finder:
    # Sends the signal where the command line is about to be imported.
    def find_spec(self, name, *_):
        if name == "idemactor.cli.main":
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder())
entry.main()
"""


@pytest.mark.parametrize("name", sorted(interrupts.TOOLS))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_amid_the_imports_of_a_tool_is_an_interruption(name: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", EARLY, str(int(number)), name, "x"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_every_tool_is_known_as_one() -> None:
    """What ``working`` is for, and nothing else: the server and the commands that talk to it have their own signals."""
    modules = {path.stem: path.read_text() for path in (Path(main_module.__file__).parent).glob("*.py")}
    tools = {name.rstrip("_") for name, text in modules.items() if "interruptible()" in text or " working(" in text}
    assert tools - {"tools", "interrupts"} == interrupts.TOOLS


@pytest.mark.parametrize("name", ["serve", "run", "get"])
def test_other_commands_have_their_signals_to_themselves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_by_us: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", set_by_us.__setitem__)
    monkeypatch.setattr(atexit, "register", lambda _: None)
    interrupts.heed_from_the_start([name])
    assert set(set_by_us) == {signal.SIGINT}
    monkeypatch.setattr(signal, "getsignal", lambda number: set_by_us.get(number, signal.SIG_DFL))
    assert main_module.main.get_command(click.Context(main_module.main), name) is not None
    assert set_by_us == {signal.SIGINT: signal.default_int_handler}


def test_what_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job that a shell put into the background, or of nohup."""
    set_by_us: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", set_by_us.__setitem__)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    monkeypatch.setattr(atexit, "register", lambda _: None)
    interrupts.heed_from_the_start(["import"])
    assert set_by_us == {}


def test_an_export_to_standard_output_has_no_report(data: Path) -> None:
    lines = invoke("export", str(data)).stdout.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["export", "end"]
    assert invoke("export", str(data), "--json").exit_code == Exit.USAGE


def test_progress_is_shown_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal, quiet in ((False, False), (True, True)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        silent = TerminalProgress(quiet=quiet)
        silent("copied", 1, 2)
        silent.clear()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_how_far_it_is(data: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "idemactor", "backup", str(tmp_path / "b"), "--data-dir", str(data)]
    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE) as process:
        os.close(theirs)
        shown = b""
        while piece := _read(lambda: os.read(ours, 4_096)):
            shown += piece
        assert process.wait(30) == 0
    os.close(ours)
    assert b"\r\x1b[Kshard 1: " in shown
    # The line is gone in the end.
    assert shown.endswith(b"\r\x1b[K")


def _read(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except OSError:  # What a terminal answers whose other side is closed.
        return b""


# ------------------------------------------------------------------------------------------------------- the audit log


AUDITED: dict[str, tuple[Any, str, list[str]]] = {name: call for name, call in CALLS.items() if name != "export"} | {
    "reencrypt": (reencrypt, "_reencrypt", [])
}


@pytest.fixture
def audit(tmp_path: Path, data: Path) -> Path:
    (tmp_path / "key").write_text(base64.b64encode(b"k" * 32).decode())
    (tmp_path / "c.toml").write_text(
        f'[server]\ndata_dir = "{data}"\nencryption_key_file = "{tmp_path / "key"}"\n'
        f'[log]\naudit_file = "{tmp_path / "audit.jsonl"}"\n'
    )
    return tmp_path / "audit.jsonl"


def test_what_an_operator_did_to_the_files_is_in_the_audit_log(tmp_path: Path, data: Path, audit: Path) -> None:
    named = ["--config", str(tmp_path / "c.toml")]
    export = tmp_path / "x"
    assert invoke("export", str(data), "--output", str(export)).exit_code == 0
    assert not audit.exists()
    for arguments in (
        ["backup", str(tmp_path / "b"), "--data-dir", str(data)],
        ["restore", "--replace", str(tmp_path / "b"), str(data)],
        ["restore", str(tmp_path / "b"), str(data)],
        ["reshard", str(data), "--to", "3"],
        ["import", str(tmp_path / "n"), str(export)],
        ["reencrypt"],
    ):
        invoke(*arguments, *named)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["op"], Path(line["data_dir"]), line["result"]) for line in lines] == [
        ("backup", data, "done"),
        ("restore", data, "done"),
        ("restore", data, "refused"),
        ("reshard", data, "done"),
        ("import", tmp_path / "n", "done"),
        ("reencrypt", data, "done"),
    ]
    assert {line["who"] for line in lines} == {pwd.getpwuid(os.getuid()).pw_name}
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", AUDITED)
@pytest.mark.parametrize(
    ("error", "result"),
    [
        (StartError("no"), "refused"),
        (OSError("no"), "refused"),
        (StorageError("no"), "damaged"),
        (KeyboardInterrupt(), "interrupted"),
        (ZeroDivisionError("no"), "failed"),
    ],
)
def test_what_came_of_it_is_in_the_line(
    tmp_path: Path, audit: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException, result: str
) -> None:
    monkeypatch.chdir(tmp_path)
    module, function, arguments = AUDITED[name]

    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module, function, failing)
    with contextlib.suppress(ZeroDivisionError):
        invoke(name, *arguments, "--config", str(tmp_path / "c.toml"))
    assert [json.loads(line)["result"] for line in audit.read_text().splitlines()] == [result]


@pytest.mark.parametrize("name", AUDITED)
def test_what_would_leave_no_trace_is_not_begun(
    tmp_path: Path, audit: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    audit.mkdir()
    module, function, arguments = AUDITED[name]
    monkeypatch.setattr(module, function, lambda *_, **__: pytest.fail("it was begun"))
    done = invoke(name, *arguments, "--config", str(tmp_path / "c.toml"))
    assert done.exit_code == Exit.USAGE
    assert "audit.jsonl cannot be written" in done.stderr


def test_a_line_that_cannot_be_written_any_more_is_told(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    audit = tmp_path / "log" / "audit.jsonl"
    (tmp_path / "c.toml").write_text(f'[server]\ndata_dir = "{data}"\n[log]\naudit_file = "{audit}"\n')
    monkeypatch.setattr(resharding, "reshard", lambda *_: shutil.rmtree(tmp_path / "log"))
    done = invoke("reshard", str(data), "--to", "3", "--config", str(tmp_path / "c.toml"))
    said, _, line = done.stderr.partition("; its line: ")
    assert said == f"idemactor: log.audit_file {audit} cannot be written: No such file or directory"
    told = json.loads(line)
    assert (told["op"], told["data_dir"], told["result"]) == ("reshard", str(data), "done")
    assert line.endswith("}\n")


# ---------------------------------------------------------------------------------------------- where an export goes to


def test_a_dash_is_standard_output_and_input(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exported = invoke("export", str(data), "--output", "-")
    assert exported.exit_code == 0
    assert [json.loads(line)["type"] for line in exported.stdout.splitlines()] == ["export", "end"]
    assert invoke("export", str(data), "--output", "-", "--json").exit_code == Exit.USAGE
    assert sorted(os.listdir(tmp_path)) == ["data"]
    assert invoke("import", "new", "-", stdin=exported.stdout_bytes).exit_code == 0
    assert (tmp_path / "new" / "idemactor.json").exists()
    # Whoever means a file of that name can say so.
    assert invoke("export", str(data), "--output", "./-").exit_code == 0
    assert invoke("import", "again", "./-").exit_code == 0
    assert (tmp_path / "-").is_file()


def test_a_backup_is_changed_by_no_tool(data: Path, tmp_path: Path) -> None:
    backup, lines, config = tmp_path / "b", tmp_path / "x", tmp_path / "c.toml"
    key = tmp_path / "key"
    key.write_text(base64.b64encode(bytes(32)).decode())
    config.write_text(f'[server]\nencryption_key_file = "{key}"\n')
    invoke("backup", str(backup), "--data-dir", str(data))
    invoke("export", str(data), "--output", str(lines))
    before = digests(backup)
    for arguments in (
        ("reshard", str(backup), "--to", "3"),
        ("import", str(backup), str(lines)),
        ("reencrypt", "--config", str(config), "--data-dir", str(backup)),
    ):
        done = invoke(*arguments)
        assert done.exit_code == Exit.USAGE
        said = f"idemactor: {backup} is a backup, and stays one: `idemactor restore {backup} DIR` makes"
        assert done.stderr.startswith(said)
        assert digests(backup) == before
    # Once somebody served it, it is a data directory like any other.
    DataDirectory.open(backup).close()
    assert invoke("reshard", str(backup), "--to", "3").exit_code == 0


@pytest.mark.parametrize("name", ["shard-0001.db", "journal.db"])
def test_a_file_that_is_gone_is_damage_and_named(data: Path, tmp_path: Path, name: str) -> None:
    invoke("backup", str(tmp_path / "b"), "--data-dir", str(data))
    for path in (tmp_path / "b", data):
        (path / name).unlink()
    for arguments, where in (
        (("restore", str(tmp_path / "b"), str(tmp_path / "r")), tmp_path / "b"),
        (("backup", str(tmp_path / "r"), "--data-dir", str(data)), data),
        (("export", str(data), "--output", str(tmp_path / "r")), data),
    ):
        done = invoke(*arguments)
        assert (done.exit_code, done.stderr.split(" is missing")[0]) == (Exit.DAMAGED, f"idemactor: {where / name}")
        assert not (tmp_path / "r").exists()


def test_what_is_no_file_is_written_to_and_stays_what_it_is(data: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert invoke("export", str(data), "--output", str(pipe)).exit_code == 0
        lines = reader.stdout.read().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["export", "end"]
    assert pipe.is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["data", "pipe"]


@pytest.mark.parametrize("entries", [0, 5_000])
def test_where_an_export_finds_no_room_is_said(data: Path, monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """Amid it, and where the last of it is flushed. It is not the directory that is read."""
    whole = exporting.export

    def longer(path: Path, write: Callable[[bytes], object], *more: Any, **named: Any) -> End:
        for _ in range(entries):
            write(b"one line more\n")
        return whole(path, write, *more, **named)

    monkeypatch.setattr(exporting, "export", longer)
    result = invoke("export", str(data), "--output", "/dev/full")
    assert result.exit_code == Exit.USAGE
    assert result.stderr.startswith("idemactor: /dev/full cannot be used: the disk is full")
    assert str(data) not in result.stderr


def test_an_export_to_a_standard_output_without_room_says_so(data: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "idemactor", "export", str(data)]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == Exit.USAGE
    assert ended.stderr.startswith("idemactor: standard output cannot be used: the disk is full")


def test_an_export_takes_nobodys_place(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "inside").symlink_to(data / "new.jsonl")
    before = digests(data)
    for output, said in (
        (tmp_path / "mine", "there already"),
        (tmp_path / "link", "there already"),
        (tmp_path / "dangling", "there already"),
        (tmp_path / "inside", "inside of"),
        (data / "shard-0000.db", "inside of"),
        (data / "idemactor.json", "inside of"),
        (data / "new.jsonl", "inside of"),
        (tmp_path, "is a directory"),
        ("", "is a directory"),
        (".", "is a directory"),
        ("/", "is a directory"),
        (tmp_path / "nowhere" / "x", "No such file"),
    ):
        result = invoke("export", str(data), "--output", str(output))
        assert (result.exit_code, said in result.stderr) == (Exit.USAGE, True), (output, result.stderr)
    assert digests(data) == before
    assert (tmp_path / "mine").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["dangling", "data", "inside", "link", "mine"]
    assert all((tmp_path / name).is_symlink() for name in ("dangling", "inside", "link"))


KILLED = """
import os, signal, sys
from idemactor.cli.main import main
from idemactor.storage import exporting
def export(data_dir, write, *_, **__):
    write(b"in clear" * 4_096)
    os.kill(os.getpid(), signal.SIGKILL)
exporting.export = export
main(sys.argv[1:])
"""


def test_an_export_that_is_killed_leaves_nothing(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, "export", str(data), "--output", str(tmp_path / "all")]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["data"]


@pytest.fixture(params=["nameless", "no O_TMPFILE", "no /proc"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that has files without a name, and such as have not, or no way to name them."""
    kind, opened = str(request.param), os.open

    def refusing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, *more, **named)

    if kind == "no O_TMPFILE":
        monkeypatch.setattr(os, "open", refusing)
    elif kind == "no /proc":
        monkeypatch.setattr(export_module, "_name_of", lambda _: "/nowhere/there")
    return kind


@pytest.mark.usefixtures("file_system")
def test_an_export_is_there_once_it_is_whole(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, there = exporting.export, []

    def looked_at(*arguments: Any, **named: Any) -> End:
        there.extend(os.listdir(tmp_path))
        return whole(*arguments, **named)

    monkeypatch.setattr(exporting, "export", looked_at)
    assert invoke("export", str(data), "--output", str(tmp_path / "all")).exit_code == 0
    assert "all" not in there
    assert sorted(os.listdir(tmp_path)) == ["all", "data"]
    lines = (tmp_path / "all").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["export", "end"]
    assert stat.S_IMODE((tmp_path / "all").stat().st_mode) == 0o600


def test_where_an_export_is_nameless(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_system: str
) -> None:
    """Only where there can be no other is one called after its output."""
    there: list[str] = []

    def interrupted(*_: object, **__: object) -> None:
        there.extend(os.listdir(tmp_path))
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "export", interrupted)
    assert invoke("export", str(data), "--output", str(tmp_path / "all")).exit_code == 130
    assert len(there) == (1 if file_system == "nameless" else 2)
    assert os.listdir(tmp_path) == ["data"]


def test_an_export_leaves_what_is_called_as_its_scratch_is(data: Path, tmp_path: Path) -> None:
    (tmp_path / "all.unfinished").write_text("mine")
    assert invoke("export", str(data), "--output", str(tmp_path / "all")).exit_code == 0
    assert (tmp_path / "all.unfinished").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["all", "all.unfinished", "data"]


@pytest.mark.usefixtures("file_system")
def test_a_file_that_came_to_be_there_during_the_export_stays(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "all"

    def overtaken(*_: object, **__: object) -> End:
        output.write_text("mine")
        return End(0, 0, 0)

    monkeypatch.setattr(exporting, "export", overtaken)
    assert "meanwhile" in invoke("export", str(data), "--output", str(output)).stderr
    assert output.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["all", "data"]


def test_a_restore_without_a_manifest_says_that_nothing_was_compared(data: Path, tmp_path: Path) -> None:
    invoke("backup", str(tmp_path / "b"), "--data-dir", str(data))
    assert "not compared" not in invoke("restore", str(tmp_path / "b"), str(tmp_path / "one")).stdout
    (tmp_path / "b" / "backup.json").unlink()
    assert "they were not compared" in invoke("restore", str(tmp_path / "b"), str(tmp_path / "two")).stdout
