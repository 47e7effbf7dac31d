"""The command line: what it hands to the server, and that a user's mistake is answered in words."""

from __future__ import annotations

import json
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from idemactor import __version__
from idemactor.cli.main import main
from idemactor.config import ServerConfig
from idemactor.errors import StartError, StorageError
from idemactor.server.service_manager import Inherited, ServiceManager
from idemactor.storage.check import Finding, Report, Severity, ShardReport


class FakeNode(types.ModuleType):
    """Stands in for ``idemactor.node``: remembers the configuration, says that it is ready, and ends."""

    def __init__(self) -> None:
        super().__init__("idemactor.node")
        self.configs: list[ServerConfig] = []
        self.failure: BaseException | None = None

    async def run(
        self,
        config: ServerConfig,
        *,
        load: Callable[[], ServerConfig],
        announce: Callable[[str], None],
        sockets: Inherited,
        manager: ServiceManager,
    ) -> None:
        # What it was started with is what would be read again.
        assert load() == config
        # Nobody passed anything on, and nobody is to be told.
        assert not sockets.sockets
        assert manager.beat_ms is None
        await trio.lowlevel.checkpoint()
        self.configs.append(config)
        if self.failure is not None:
            raise self.failure
        announce("idemactor ready http=127.0.0.1:1 rpc=127.0.0.1:2")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNode:
    monkeypatch.chdir(tmp_path)
    fake = FakeNode()
    monkeypatch.setitem(sys.modules, "idemactor.node", fake)
    return fake


def invoke(*arguments: str, environment: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, arguments, env=environment, catch_exceptions=False)


def test_version_and_help() -> None:
    assert invoke("--version").output == f"idemactor {__version__}\n"
    for arguments in (["--help"], ["-h"], ["serve", "--help"], ["check", "--help"]):
        result = invoke(*arguments)
        assert result.exit_code == 0
        assert result.output.startswith("Usage: ")


@pytest.mark.parametrize("command", ["serve", "check"])
def test_help_has_an_example(command: str) -> None:
    assert "\n  Example:\n    " in (said := invoke(command, "--help").output)
    assert f"idemactor {command} --" in said or f"idemactor {command} /" in said


def test_serve_announces_on_standard_output(node: FakeNode) -> None:
    result = invoke("serve")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "idemactor ready http=127.0.0.1:1 rpc=127.0.0.1:2\n"
    assert node.configs == [ServerConfig()]


def test_serve_reads_config_toml_where_it_is_there(node: FakeNode) -> None:
    Path("config.toml").write_text("server.shards = 7\n")
    Path("other.toml").write_text("server.shards = 8\n")
    invoke("serve")
    invoke("serve", "--config", "other.toml")
    assert [config.server.shards for config in node.configs] == [7, 8]


def test_flags_win_over_the_environment_and_that_over_the_file(node: FakeNode) -> None:
    Path("config.toml").write_text('server.shards = 1\nserver.data_dir = "file"\nrpc.bind = ["[::1]:1"]\n')
    invoke(
        *("serve", "--shards", "3", "--http", "127.0.0.1:0", "--http", "unix:http.sock"),
        environment={"IDEMACTOR_SERVER__SHARDS": "2", "IDEMACTOR_SERVER__DATA_DIR": "environment"},
    )
    invoke("serve", "--data-dir", "flag", "--rpc", "unix:rpc.sock")
    first, second = node.configs
    assert (first.server.shards, first.server.data_dir) == (3, Path("environment"))
    assert first.http.bind == ("127.0.0.1:0", "unix:http.sock")
    assert first.rpc.bind == ("[::1]:1",)
    assert (second.server.shards, second.server.data_dir) == (1, Path("flag"))
    assert second.rpc.bind == ("unix:rpc.sock",)


def test_every_mistake_in_the_configuration_is_a_line(node: FakeNode) -> None:
    Path("config.toml").write_text("server.shards = 0\nserver.shard = 1\n")
    result = invoke("serve", "--http", "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line.partition(": server.")[0] for line in result.stderr.splitlines()[:2]] == [
        "idemactor: config.toml:1",
        "idemactor: config.toml:2",
    ]
    assert result.stderr.splitlines()[2].startswith("idemactor: flag --http: http.bind: ")
    assert len(result.stderr.splitlines()) == 3
    assert node.configs == []


def test_a_file_that_is_named_has_to_be_there(node: FakeNode) -> None:
    result = invoke("serve", "--config", "missing.toml")
    assert result.exit_code == 2
    assert result.stderr == "idemactor: missing.toml: cannot be read: No such file or directory\n"
    assert node.configs == []


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: BaseExceptionGroup("", [error])])
def test_a_server_that_cannot_start_says_so_in_words(
    node: FakeNode, wrap: Callable[[Exception], BaseException]
) -> None:
    node.failure = wrap(StartError("data: another server has it"))
    result = invoke("serve")
    assert (result.exit_code, result.stderr) == (2, "idemactor: data: another server has it\n")


def test_any_other_failure_keeps_its_traceback(node: FakeNode) -> None:
    node.failure = RuntimeError("a broken promise")
    with pytest.raises(RuntimeError, match="a broken promise"):
        invoke("serve")


@pytest.mark.parametrize("arguments", [["serve", "--shards", "many"], ["serve", "--nonsense"], ["nonsense"]])
def test_a_wrong_flag_is_a_usage_error(node: FakeNode, arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2
    assert node.configs == []


def test_the_package_runs_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["__main__.py", "--version"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("idemactor", run_name="__main__")
    assert (caught.value.code, capsys.readouterr().out) == (0, f"idemactor {__version__}\n")


def report(*findings: Finding) -> Report:
    return Report(Path("data"), (), findings)


class FakeCheck(types.ModuleType):
    """Stands in for ``idemactor.storage.check``."""

    def __init__(self) -> None:
        super().__init__("idemactor.storage.check")
        self.paths: list[Path] = []
        self.answer: Report | Exception = report()

    def check_directory(self, path: Path, _progress: object) -> Report:
        self.paths.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> FakeCheck:
    fake = FakeCheck()
    monkeypatch.setitem(sys.modules, "idemactor.storage.check", fake)
    return fake


def test_check_of_a_clean_directory(checker: FakeCheck) -> None:
    result = invoke("check", "some/data")
    assert (result.exit_code, result.stdout) == (0, "some/data: clean\n")
    assert checker.paths == [Path("some/data")]


def test_check_says_what_it_found_in_each_shard(checker: FakeCheck) -> None:
    counts = {"pending": 1, "lapsed": 2, "doubted": 3, "committed": 4, "tombstones": 5, "incidents": 6}
    sizes = {"last_token": 7, "latest_ms": 8, "file_bytes": 4096, "wal_bytes": 0}
    checker.answer = Report(Path("data"), (ShardReport(shard=0, **counts, **sizes, journal_batches=9),), ())
    result = invoke("check", "data")
    assert result.stdout == (
        "shard 0: 10 records (1 pending, 5 in doubt, 4 committed), 5 tombstones, 6 incidents, 4096 bytes;"
        " starting brings in 9 batches of the journal\ndata: clean\n"
    )


def test_check_lists_findings(checker: FakeCheck) -> None:
    checker.answer = report(Finding(0, Severity.ERROR, "torn"), Finding(None, Severity.WARNING, "extra"))
    result = invoke("check", "data")
    assert (result.exit_code, result.stdout) == (1, "shard 0: error: torn\nwarning: extra\ndata: findings: 2\n")


def test_a_warning_alone_is_said_and_no_failure(checker: FakeCheck) -> None:
    checker.answer = report(Finding(1, Severity.WARNING, "odd"))
    result = invoke("check", "data")
    assert (result.exit_code, result.stdout) == (0, "shard 1: warning: odd\ndata: findings: 1\n")


def test_check_as_json(checker: FakeCheck) -> None:
    checker.answer = report(Finding(0, Severity.ERROR, "torn"))
    result = invoke("check", "--json", "data")
    findings = [{"shard": 0, "severity": "error", "what": "torn"}]
    assert (result.exit_code, json.loads(result.stdout)) == (1, {"path": "data", "shards": [], "findings": findings})


@pytest.mark.parametrize("error", [StorageError("in use"), StartError("in use"), OSError("in use")])
def test_check_that_cannot_be_done(checker: FakeCheck, error: Exception) -> None:
    checker.answer = error
    result = invoke("check", "data")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "idemactor: data: cannot be checked: in use\n"
