"""systemd and the real process: what it is told, what it passes on, and who notices that a process hangs."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Sequence
from configparser import RawConfigParser
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from idemactor.cli.main import main
from idemactor.config.model import DRAIN_MS_DEFAULT, HANG_MS_DEFAULT
from tests.system.clients import HttpClient, RpcClient, connect, read_to_end
from tests.system.process import Server, assert_calm, eventually, refused
from tests.system.service_manager import Manager, listening, listening_unix, passing
from tests.system.worker_server import Workers

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples" / "systemd"
WATCHDOG_S: Final = 1.5


def notifying(manager: Manager) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1_000_000))}


def start(home: Path, manager: Manager, workers: int) -> Server:
    """A running server of that many workers, started by ``manager``."""
    flags = ["--workers", str(workers)]
    return Server(home, flags=flags, extra=notifying(manager) | {"IDEMACTOR_SERVER__HANG_MS": "3000"}).start()


# ----------------------------------------------------------------------------------------------------- what it is told


@pytest.mark.parametrize("workers", [1, 2])
def test_ready_alive_stopping(home: Path, workers: int) -> None:
    with Manager(home / "notify") as manager, start(home, manager, workers) as server:
        manager.wait_for("READY=1")
        assert f"STATUS={server.ready_line}" in manager.heard
        with server.http_client() as client:
            assert client.call("reserve", key="k").status == 201
        beats = manager.listen(2 * WATCHDOG_S).count("WATCHDOG=1")
        assert beats >= 2
        assert "STOPPING=1" not in manager.heard
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "STOPPING=1" in manager.listen(0.1)
    assert manager.heard.count("READY=1") == 1
    assert_calm(server)


def test_a_process_that_is_stopped_gives_no_sign_of_life(home: Path) -> None:
    with Manager(home / "notify") as manager, start(home, manager, 1) as server:
        manager.wait_for("WATCHDOG=1")
        server.signal(signal.SIGSTOP)
        manager.listen(0.2)
        assert manager.listen(2 * WATCHDOG_S) == []
        server.signal(signal.SIGCONT)
        manager.wait_for("WATCHDOG=1")
        assert server.terminate() == 0


def test_a_manager_that_is_away_does_not_matter(home: Path) -> None:
    manager = Manager(home / "notify")
    with start(home, manager, 1) as server:
        manager.wait_for("READY=1")
        with manager:
            pass
        manager.path.unlink()
        eventually(lambda: '"service_manager_not_told"' in server.log)
        with server.http_client() as client:
            assert client.call("reserve", key="k").status == 201
        assert server.terminate() == 0
    assert server.log.count('"service_manager_not_told"') == 1


def test_a_watchdog_of_another_process_is_not_answered(home: Path) -> None:
    with Manager(home / "notify") as manager:
        extra = notifying(manager) | {"WATCHDOG_PID": "1"}
        with Server(home, extra=extra) as server:
            assert "WATCHDOG=1" not in manager.listen(2 * WATCHDOG_S)
            assert "READY=1" in manager.heard
            assert server.terminate() == 0


# ------------------------------------------------------------------------------------------------ a worker that hangs


def test_a_worker_that_hangs_is_started_anew_and_the_others_go_on(home: Path) -> None:
    server = Workers(home, 2)
    server._environment["IDEMACTOR_SERVER__HANG_MS"] = "3000"
    with server:
        before = server.pid_of(1)
        with server.rpc_clients() as (first, second):
            for number in range(20):
                second.call("reserve", key=f"k{number}")
            os.kill(before, signal.SIGSTOP)
            eventually(lambda: '"worker_hung"' in server.log, 15)
            eventually(lambda: server.pid_of(1) != before, 15)
            server.wait_whole()
            # What it had acknowledged is there, and it is held by nobody else.
            told = [first.call("reserve", key=f"k{number}")["result"] for number in range(20)]
            assert told == ["in_flight"] * 20
        assert server.terminate() == 0
    assert server.log.count('"worker_hung"') == 1


def test_workers_that_were_stopped_with_their_supervisor_do_not_hang(home: Path) -> None:
    server = Workers(home, 2)
    server._environment["IDEMACTOR_SERVER__HANG_MS"] = "3000"
    with server:
        everybody = [server.pid, *server.pids]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        threading.Event().wait(4.5)
        for pid in reversed(everybody):
            os.kill(pid, signal.SIGCONT)
        threading.Event().wait(2.5)
        assert sorted([server.pid, *server.pids]) == sorted(everybody)
        assert server.terminate() == 0
    assert_calm(server)


# -------------------------------------------------------------------------------------------------- sockets passed on


def activated(home: Path, names: str, sockets: Sequence[socket.socket], workers: int = 1, config: str = "") -> Server:
    return Server(
        home,
        config,
        http=(),
        rpc=(),
        flags=["--workers", str(workers)],
        prefix=passing(names, sockets),
        pass_fds=[sock.fileno() for sock in sockets],
        extra={"IDEMACTOR_HTTP__BIND": '["127.0.0.1:1"]', "IDEMACTOR_RPC__BIND": '["127.0.0.1:1"]'},
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_doors_that_were_passed_on_outlive_the_server(home: Path, workers: int) -> None:
    path = home / "http.sock"
    with listening() as http, listening() as rpc, listening_unix(path) as local:
        addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in (http, rpc)]
        with activated(home, "http:rpc:http", [http, rpc, local], workers) as server:
            assert server.addresses("http") == [addresses[0], f"unix:{path}"]
            assert server.addresses("rpc") == [addresses[1]]
            with HttpClient(f"unix:{path}") as over_unix, RpcClient(addresses[1]) as over_rpc:
                assert over_unix.call("reserve", key="k").status == 201
                assert over_rpc.call("reserve", key="k")["result"] == "in_flight"
            assert server.terminate() == 0
            # Nobody is refused meanwhile: who connects now is served by the next one.
            assert path.exists()
            with HttpClient(addresses[0], 30) as early:
                connected = threading.Event()

                def ask() -> None:
                    connected.set()
                    answers.append(early.call("reserve", key="k").members["result"])

                answers: list[str] = []
                asking = threading.Thread(target=ask)
                asking.start()
                connected.wait()
                server.start()
                asking.join()
                assert answers == ["in_flight"]
            assert server.terminate() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_knows_the_sockets_that_were_passed_on(home: Path, workers: int) -> None:
    """They belong to the configuration as it was read at the start: nothing but a token is new in it."""
    with listening() as http, activated(home, "http", [http], workers) as server:
        with HttpClient(server.http) as client:
            assert client.call("reserve", key="k").status == 201
            config = server.config_path.read_text()
            members = f'sha256 = "{"a" * 64}"\ntenant = "acme"\nnamespaces = ["*"]\nrole = "caller"\n'
            server.config_path.write_text(f"{config}\n[auth.tokens.ann]\n{members}")
            server.signal(signal.SIGHUP)
            eventually(lambda: client.call("reserve", key="k").status == 401)
        assert "tokens_reloaded" in server.log
        assert "settings_not_reloaded" not in server.log
        assert server.terminate() == 0


@pytest.mark.parametrize(
    ("names", "words"), [("web", "FileDescriptorName="), ("", "FileDescriptorName="), ("http:http", "LISTEN_FDS")]
)
def test_sockets_that_are_no_doors_of_ours(home: Path, names: str, words: str) -> None:
    with listening() as sock, socket.socketpair()[0] as talking:
        sockets = [sock, talking] if names == "http:http" else [sock]
        refusal = refused(activated(home, names, sockets))
    assert refusal.code == 2
    assert ("does not listen" if words == "LISTEN_FDS" else words) in refusal.said


def test_what_is_passed_on_obeys_the_rules_of_what_is_configured(home: Path) -> None:
    """Contract, section 10: beyond this machine only with credentials, whoever bound the socket."""
    with listening("0.0.0.0") as sock:
        refusal = refused(activated(home, "http", [sock]))
    assert refusal.code == 2
    assert "socket activation: http.bind" in refusal.said
    assert "no credentials" in refusal.said


# ------------------------------------------------------------------------------------------------- SIGTERM at any time


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_during_the_start_is_an_ordinary_end(home: Path, workers: int) -> None:
    server = Server(home, flags=["--workers", str(workers), "--shards", "512"])
    server._spawn([])
    # The directory is there once the signals are listened to; making so many shards takes its time.
    eventually((home / "data" / "idemactor.json").exists, 30)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert '"ready"' not in server.log
    assert "Traceback" not in server.log
    with server.start(), server.http_client() as client:
        assert client.call("reserve", key="k").status == 201
        assert server.terminate() == 0


def test_an_upstream_that_hangs_is_given_up_and_told_before_the_drain_is_over(home: Path) -> None:
    with listening() as upstream:
        port = upstream.getsockname()[1]
        config = f"""
            [server]
            drain_ms = 3000
            [namespaces.default]
            [gateway]
            bind = ["127.0.0.1:0"]
            [[gateway.routes]]
            prefix = "/"
            upstream = "http://127.0.0.1:{port}"
            namespace = "default"
            source = "http"
        """
        server = Server(home, config).start()
        with connect(server.addresses("gateway")[0]) as client:
            client.sendall(b"POST /a HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 0\r\n\r\n")
            upstream.settimeout(10)
            asked, _ = upstream.accept()
            with asked:
                asked.recv(4_096)
                server.signal(signal.SIGTERM)
                assert read_to_end(client).startswith(b"HTTP/1.1 409 ")
                assert server.wait(10) == 0
        assert '"stopped"' in server.log
        with server.start(), server.http_client() as asking:
            record = asking.call("get", key="k").members["record"]
            # What became of it is not known, and nobody is told anything else.
            assert record["state"] == "in_doubt"


def test_a_delivery_that_hangs_is_cut_off_and_told_before_the_drain_is_over(home: Path) -> None:
    with listening() as destination:
        config = f"""
            [server]
            drain_ms = 2000
            [namespaces.default]
            [namespaces.work.dispatch]
            url = "http://127.0.0.1:{destination.getsockname()[1]}/"
        """
        server = Server(home, config).start()
        with server.rpc_client() as client:
            client.call("dispatch", namespace="work", key="k", intent={"content_type": "text/plain", "body": "x"})
        destination.settimeout(10)
        asked, _ = destination.accept()
        with asked:
            asked.recv(4_096)
            server.signal(signal.SIGTERM)
            assert server.wait(10) == 0
    assert '"stopped"' in server.log
    assert "drain_cut_off" not in server.log
    with Server(home, "[namespaces.default]\n[namespaces.work]").start() as again, again.http_client() as asking:
        assert asking.call("get", "work", key="k").members["record"]["state"] == "in_doubt"


# ---------------------------------------------------------------------------------------------------------- the example


def unit(name: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((EXAMPLES / name).read_text())
    return parser


def test_the_unit_fits_the_server() -> None:
    service = unit("idemactor.service")["Service"]
    assert service["Type"] == "notify"
    assert service["KillMode"] == "mixed"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    # A stop ends by itself before it is ended, and a worker that hangs is the supervisor's before it is the watchdog's.
    assert int(service["TimeoutStopSec"]) * 1_000 > DRAIN_MS_DEFAULT + 5_000
    assert int(service["WatchdogSec"]) * 1_000 > 2 * HANG_MS_DEFAULT
    # A start that is refused may succeed later, whatever its exit code; and nothing ends the trying.
    assert service["Restart"] == "on-failure"
    assert "RestartPreventExitStatus" not in service
    assert int(service["RestartSec"]) < int(service["RestartMaxDelaySec"]) < 300
    assert int(service["RestartSteps"]) > 0
    assert unit("idemactor.service")["Unit"]["StartLimitIntervalSec"] == "0"
    assert "After=time-sync.target" in (EXAMPLES / "idemactor.service").read_text().splitlines()


def test_the_unit_may_write_what_the_example_of_a_configuration_names() -> None:
    service = unit("idemactor.service")["Service"]
    assert service["ProtectSystem"] == "strict"
    (audit_file,) = re.findall(
        r'^#audit_file = "(.+)"', (EXAMPLES.parents[1] / "config.toml").read_text(), re.MULTILINE
    )
    assert Path(audit_file).parent == Path("/var/log") / service["LogsDirectory"]


@pytest.mark.parametrize("command", ["check", "reshard", "reencrypt"])
def test_who_stops_the_service_for_a_tool_stops_its_sockets(command: str) -> None:
    """The next caller would have the service started again."""
    shown = CliRunner().invoke(main, [command, "--help"]).output
    patterns = re.findall(r"systemctl stop '(.+?)' &&", shown)
    units = [file.name for file in EXAMPLES.iterdir() if file.suffix in (".service", ".socket")]
    assert len(units) == 3
    assert len(patterns) == 1
    assert all(fnmatch(name, patterns[0]) for name in units)


@pytest.mark.parametrize("door", ["http", "rpc"])
def test_the_sockets_are_named_after_their_doors(door: str) -> None:
    found = unit(f"idemactor-{door}.socket")["Socket"]
    assert found["FileDescriptorName"] == door
    assert found["Service"] == "idemactor.service"
    assert found.get("Accept", "no") == "no"
