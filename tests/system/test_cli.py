"""The command line as people and scripts have it: real processes against a real server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from idemactor.cli.exits import Exit
from idemactor.cli.main import main
from tests.system.process import Server, environment, eventually

PROGRAM: Final = (sys.executable, "-m", "idemactor")
CERTIFICATE: Final = Path(__file__).parent / "http_hostile" / "test_only_cert.pem"
PRIVATE_KEY: Final = Path(__file__).parent / "http_hostile" / "test_only_key.pem"
WAIT_S: Final = 30.0
"""How long a command may take; only a broken one, or a starved machine, comes near."""

Ended = subprocess.CompletedProcess[str]


class Cli:
    """The command line of one user, who has no client file but their own."""

    def __init__(self, home: Path, server: Server | None = None, **variables: str) -> None:
        address = {} if server is None else {"IDEMACTOR_ADDRESS": server.rpc}
        self.variables = environment({"XDG_CONFIG_HOME": str(home), "HOME": str(home), **address, **variables})

    def __call__(self, *arguments: str, stdin: str | None = None) -> Ended:
        return subprocess.run(
            [*PROGRAM, *arguments],
            input=stdin or "",
            capture_output=True,
            text=True,
            env=self.variables,
            timeout=WAIT_S,
            check=False,
        )

    def json(self, *arguments: str) -> dict[str, Any]:
        """What ``--json`` writes. In this process, which is quicker: how processes start and end is told elsewhere."""
        absent = dict.fromkeys(name for name in os.environ if name.startswith("IDEMACTOR_"))
        ended = CliRunner().invoke(main, [*arguments, "--json"], env={**absent, **self.variables})
        assert ended.stdout.count("\n") == 1, ended.output
        found = json.loads(ended.stdout)
        assert isinstance(found, dict)
        return found

    def shell(self, script: str) -> Ended:
        """A script in which ``idemactor`` is the command."""
        defined = f'idemactor() {{ {" ".join(PROGRAM)} "$@"; }}\n{script}'
        return subprocess.run(
            ["bash", "-c", defined],
            capture_output=True,
            text=True,
            env=self.variables,
            timeout=WAIT_S,
            check=False,
        )

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command that is still running in the block, and gone after it."""
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.variables,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def cli(server: Server, home: Path) -> Cli:
    return Cli(home, server)


def finish(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=WAIT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def there(path: Path) -> None:
    eventually(path.exists, WAIT_S)


# ----------------------------------------------------------------------------------------------- answers, for programs


def test_json_is_the_result_as_the_server_gave_it(server: Server, cli: Cli) -> None:
    """Side by side with the raw answers of the RPC door, so that no member is lost, renamed or made up."""
    with server.rpc_client() as raw:

        def alike(raw_answer: Mapping[str, Any], *arguments: str) -> None:
            assert cli.json(*arguments) == as_json(raw_answer, arguments[0]), arguments

        reserved = cli.json("reserve", "j", "--payload", '{"a":1}', "--holder", "me")
        again = raw.call("reserve", key="j2", holder="me")
        assert reserved.keys() == again.keys()
        assert (reserved["result"], reserved["proceed"], reserved["key"]) == ("reserved", True, "j")
        token = str(reserved["token"])
        in_flight, told = cli.json("reserve", "j"), raw.call("reserve", key="j")
        assert in_flight.pop("retry_after_ms") >= told.pop("retry_after_ms")
        assert in_flight == told
        alike(raw.call("reserve", key="j", payload={"a": 2}), "reserve", "j", "--payload", '{"a":2}')
        alike(raw.call("get", key="j"), "get", "j")
        doubted = cli.json("doubt", "j", token, "--reason", "r")
        assert doubted == {**raw.call("doubt", key="j", token=reserved["token"]), "repeated": False}
        alike(raw.call("extend", key="j", token=reserved["token"], lease_ms=5), "extend", "j", token, "5ms")
        alike(raw.call("reserve", key="j"), "reserve", "j")
        alike(raw.call("release", key="j", token=999), "release", "j", "999")
        resolved = cli.json("resolve", "j", token, "committed", "--body", "b")
        repeated = raw.call("resolve", key="j", token=reserved["token"], verdict="committed")
        assert resolved == {**repeated, "repeated": False}
        alike(raw.call("reserve", key="j"), "reserve", "j")
        alike(raw.call("reserve", key="j", on_duplicate="reject"), "reserve", "j", "--on-duplicate", "reject")
        alike(raw.call("commit", key="j", token=reserved["token"]), "commit", "j", token)
        alike(raw.call("release", key="j", token=reserved["token"]), "release", "j", token)
        alike(raw.call("get", key="j"), "get", "j")
        alike(raw.call("get", key="nothing"), "get", "nothing")
        alike(raw.call("records", limit=1), "records", "--limit", "1")
        alike(raw.call("policy", namespace="trade"), "policy", "-n", "trade")
        assert cli.json("accept", "j3").keys() == raw.call("accept", key="j4").keys()
        assert cli.json("ping") == raw.request("ping", {})
        assert cli.json("forget", "j3") == raw.call("forget", key="j4")


def as_json(answer: Mapping[str, Any], command: str) -> dict[str, Any]:
    """A raw answer with its bodies as text, and with what every refused reserve says over HTTP."""
    found: dict[str, Any] = json.loads(json.dumps(answer, default=bytes.decode))
    return found | {"proceed": found.get("proceed", False)} if command in ("reserve", "accept") else found


def test_incidents_from_evidence_to_acknowledgement(cli: Cli) -> None:
    first = cli.json("reserve", "late", "--lease", "1ms")
    second = cli.json("reserve", "late", "--lease", "1m")
    assert (second["takeover"], second["operation_id"]) == (True, first["operation_id"])
    stale = cli("commit", "late", str(first["token"]), "--body", "late answer")
    assert (stale.returncode, stale.stdout) == (Exit.STALE, "")
    assert stale.stderr == "idemactor: stale: the token is not that of the latest attempt (that is number 2)\n"
    [incident] = [found for found in cli.json("incidents")["incidents"] if found["key"] == "late"]
    assert (incident["token"], incident["outcome"]["body"]) == (first["token"], "late answer")
    assert "contested" in cli("records", "--contested").stdout
    assert cli.json("incidents", "--acknowledge", incident["id"]) == {"result": "acknowledged"}
    gone = cli("incidents", "--acknowledge", incident["id"])
    assert (gone.returncode, gone.stdout) == (Exit.UNKNOWN, ""), gone.stderr


# --------------------------------------------------------------------------------------------------- and for scripts


def test_a_script_branches_on_exit_codes(cli: Cli) -> None:
    script = """
        token=$(idemactor reserve "$KEY" --lease 30s --quiet) || exit
        echo placed | idemactor commit "$KEY" "$token" --status 201 --body - > /dev/null || exit
        idemactor get "$KEY" --body
    """
    cli.variables["KEY"] = "order-1"
    first, second = cli.shell(script), cli.shell(script)
    assert (first.returncode, first.stdout) == (0, "placed\n")
    assert (second.returncode, second.stdout) == (Exit.COMPLETED, "")


def test_a_command_whose_reader_leaves_notices(cli: Cli) -> None:
    ended = cli.shell("idemactor run --key pipe --capture -- yes | head -n 1; echo ${PIPESTATUS[0]}")
    assert ended.stdout == f"y\n{128 + signal.SIGPIPE}\n"


def test_bash_loads_the_completion(cli: Cli) -> None:
    ended = cli.shell('eval "$(_IDEMACTOR_COMPLETE=bash_source idemactor)" && complete -p idemactor')
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("complete -o nosort -F _idemactor_completion idemactor")


def test_nobody_there(home: Path) -> None:
    cli = Cli(home, IDEMACTOR_ADDRESS=f"unix:{home}/nothing.sock")
    ended = cli("reserve", "k", "--timeout", "300ms", "--json")
    assert ended.returncode == Exit.OUT_OF_SERVICE
    told = json.loads(ended.stdout)
    assert (told["code"], told["proceed"]) == ("UNREACHABLE", False)
    assert "there is no such socket" in told["detail"]
    assert ended.stderr == f"idemactor: {told['detail']}\n"


def test_a_token_over_tls_from_the_client_file(home: Path) -> None:
    config = f'[rpc]\ntls_cert = "{CERTIFICATE}"\ntls_key = "{PRIVATE_KEY}"\n[namespaces.default]\n'
    for name in ("caller", "operator"):
        digest = hashlib.sha256(f"secret of {name}".encode()).hexdigest()
        config += f'[auth.tokens.{name}]\nsha256="{digest}"\ntenant="t"\nnamespaces=["*"]\nrole="{name}"\n'
    (home / "idemactor").mkdir()
    with Server(home, config) as server:
        file = home / "idemactor" / "client.toml"
        file.write_text(f'address = "{server.rpc}"\ntoken_file = "token"\ntls_ca = "{CERTIFICATE}"\ntimeout = "2s"\n')
        (home / "idemactor" / "token").write_text("secret of operator\n")
        cli = Cli(home)
        assert cli("records").returncode == 0
        assert cli("records", "--token", "secret of caller").returncode == Exit.DENIED
        cli.variables["IDEMACTOR_TOKEN"] = "wrong"
        denied = cli("reserve", "k", "--json")
        assert (denied.returncode, json.loads(denied.stdout)["code"]) == (Exit.DENIED, "IDEMPOTENCY_UNAUTHENTICATED")
        assert "wrong" not in denied.stderr + denied.stdout
        file.write_text(f'address = "{server.rpc}"\ntoken_file = "token"\ntls = true\n')
        untrusted = cli("ping")
        assert untrusted.returncode == Exit.DENIED
        assert "is not trusted" in untrusted.stderr


# ------------------------------------------------------------------------------------------------------------------ run


def test_of_two_at_once_one_runs(cli: Cli, home: Path) -> None:
    ran, go = home / "ran", home / "go"
    script = f"echo run >> {ran}; while ! test -e {go}; do sleep 0.02; done"
    arguments = ("run", "--key", "two", "--", "sh", "-c", script)
    with cli.started(*arguments) as one, cli.started(*arguments) as other:
        eventually(lambda: one.poll() is not None or other.poll() is not None, WAIT_S)
        go.touch()
        ended = [finish(one), finish(other)]
    assert sorted(each.returncode for each in ended) == [0, Exit.IN_FLIGHT]
    assert ran.read_text() == "run\n"
    assert cli(*arguments).returncode == Exit.COMPLETED


def test_who_waits_is_told_what_came_of_it(cli: Cli, home: Path) -> None:
    ready, go = home / "ready", home / "go"
    first = ("sh", "-c", f"touch {ready}; while ! test -e {go}; do sleep 0.02; done; exit 75")
    with cli.started("run", "--key", "waits", "--release-on", "75", "--", *first) as one:
        there(ready)
        with cli.started("run", "--key", "waits", "--wait", "--", "echo", "mine") as other:
            time.sleep(0.5)
            assert other.poll() is None
            go.touch()
            waited = finish(other)
        assert finish(one).returncode == 75
    assert (waited.returncode, waited.stdout) == (0, "mine\n")


def test_sigterm_to_run_is_the_command_s_and_that_of_all_it_started(cli: Cli, home: Path) -> None:
    ready, gone = home / "ready", home / "gone"
    below = f"trap 'touch {gone}; exit' TERM; touch {ready}; while :; do sleep 0.05; done"
    with cli.started("run", "--key", "term", "--", "sh", "-c", f'sh -c "{below}" & wait') as running:
        there(ready)
        running.send_signal(signal.SIGTERM)
        ended = finish(running)
    assert ended.returncode == 128 + signal.SIGTERM
    assert "idemactor: the command ended with SIGTERM: term is in doubt until it is resolved\n" in ended.stderr
    there(gone)
    assert cli.json("get", "term")["record"]["reason"] == "SIGTERM"


def test_who_kills_run_ends_the_command_too(cli: Cli, home: Path) -> None:
    ready, gone = home / "ready", home / "gone"
    script = f"trap 'touch {gone}; exit' TERM; touch {ready}; while :; do sleep 0.05; done"
    with cli.started("run", "--key", "killed", "--", "sh", "-c", script) as running:
        there(ready)
        running.kill()
        there(gone)
    assert cli.json("get", "killed")["record"]["state"] == "pending"


def test_a_server_that_dies_and_comes_back_meanwhile_is_not_noticed(home: Path) -> None:
    ready, go = home / "ready", home / "go"
    script = f"touch {ready}; while ! test -e {go}; do sleep 0.02; done"
    with Server(home, rpc=[f"unix:{home}/rpc.sock"]) as server:
        cli = Cli(home, server)
        with cli.started("run", "--key", "k", "--lease", "20s", "--capture", "--", "sh", "-c", script) as running:
            there(ready)
            server.kill()
            # It ends while there is no server: the commit waits for one.
            go.touch()
            time.sleep(0.5)
            server.start()
            ended = finish(running)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert cli.json("get", "k")["record"]["state"] == "committed"


UNTOLD: Final = "unless the server heard of it all the same, on_lease_expiry decides, once the lease has run out"


def test_a_server_that_stays_away_loses_the_lease(home: Path) -> None:
    ready = home / "ready"
    # The shell would write there how its own commands ended.
    script = f"exec 2>/dev/null; trap 'exit 0' TERM; touch {ready}; while :; do sleep 0.02; done"
    with Server(home, rpc=[f"unix:{home}/rpc.sock"]) as server:
        cli = Cli(home, server)
        with cli.started(
            "run", "--key", "k", "--lease", "1s", "--timeout", "300ms", "--", "sh", "-c", script
        ) as running:
            there(ready)
            server.kill()
            time.sleep(3)
            # The command has ended, and a signal ends the telling.
            running.send_signal(signal.SIGTERM)
            eventually(lambda: running.poll() is not None, 5)
            ended = finish(running)
        assert ended.returncode == Exit.LEASE_LOST
        first, second = ended.stderr.splitlines()
        assert first == "idemactor: the lease was lost: ending the command"
        assert second.startswith("idemactor: the command ended with exit status 0, and nobody could be told: ")
        assert UNTOLD in second


@pytest.mark.parametrize("code", [0, 4, 75])
def test_nobody_is_told_that_a_key_is_in_doubt_where_the_server_was_not(home: Path, code: int) -> None:
    with Server(home, rpc=[f"unix:{home}/rpc.sock"]) as server:
        cli = Cli(home, server)
        ready, go = home / "ready", home / "go"
        script = f"touch {ready}; while ! test -e {go}; do sleep 0.02; done; exit {code}"
        arguments = ("run", "--key", "k", "--lease", "3s", "--timeout", "300ms", "--release-on", "75")
        with cli.started(*arguments, "--", "sh", "-c", script) as running:
            there(ready)
            server.kill()
            go.touch()
            # Longer than --timeout it goes on trying, without a word.
            time.sleep(1.5)
            assert running.poll() is None
            running.send_signal(signal.SIGINT)
            ended = finish(running)
    assert ended.returncode == Exit.UNTOLD
    (said,) = ended.stderr.splitlines()
    assert said.startswith(f"idemactor: the command ended with exit status {code}, and nobody could be told: ")
    assert UNTOLD in said


def test_a_server_that_comes_back_after_the_timeout_is_told_of_the_doubt(home: Path) -> None:
    ready, go = home / "ready", home / "go"
    script = f"touch {ready}; while ! test -e {go}; do sleep 0.02; done; exit 4"
    with Server(home, rpc=[f"unix:{home}/rpc.sock"]) as server:
        cli = Cli(home, server)
        with cli.started(
            "run", "--key", "k", "--lease", "20s", "--timeout", "300ms", "--", "sh", "-c", script
        ) as running:
            there(ready)
            server.kill()
            go.touch()
            time.sleep(1.5)
            server.start()
            ended = finish(running)
        said = "idemactor: the command ended with exit status 4: k is in doubt until it is resolved\n"
        assert (ended.returncode, ended.stderr) == (4, said)
        assert cli.json("get", "k")["record"]["state"] == "in_doubt"


def heeds(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether a process has something of its own to do at a signal (Linux, proc_pid_status(5))."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [caught] = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(caught >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_waits_stops_at_once(cli: Cli, number: signal.Signals) -> None:
    key = f"held-{number.name}"
    assert cli("reserve", key).returncode == 0
    with cli.started("run", "--key", key, "--wait", "--", "echo", "ran") as waiting:
        # All three are heeded from the same moment on; Python itself heeds SIGINT sooner.
        eventually(lambda: heeds(waiting, signal.SIGTERM), WAIT_S)
        assert waiting.poll() is None
        began = time.monotonic()
        waiting.send_signal(number)
        ended = finish(waiting)
        took_s = time.monotonic() - began
    assert (ended.returncode, ended.stdout) == (128 + number, "")
    assert ended.stderr == f"idemactor: not run: {number.name} came first\n"
    assert took_s < 2


@pytest.mark.parametrize("arguments", [("run", "--key", "k", "--wait", "--", "true"), ("reserve", "k", "--wait")])
def test_who_waits_without_a_server_does_not_wait_for_one(home: Path, arguments: tuple[str, ...]) -> None:
    cli = Cli(home, IDEMACTOR_ADDRESS=f"unix:{home}/nothing.sock")
    began = time.monotonic()
    ended = cli(arguments[0], "--timeout", "500ms", *arguments[1:])
    assert ended.returncode == Exit.OUT_OF_SERVICE
    assert "no answer from " in ended.stderr
    assert time.monotonic() - began < 10


def test_without_a_server_it_runs_only_where_that_is_asked(home: Path) -> None:
    cli = Cli(home, IDEMACTOR_ADDRESS=f"unix:{home}/nothing.sock")
    closed = cli("run", "--key", "k", "--timeout", "200ms", "--", "echo", "ran")
    assert (closed.returncode, closed.stdout) == (Exit.OUT_OF_SERVICE, "")
    assert closed.stderr.startswith("idemactor: not run: no answer from ")
    script = "echo ran ${IDEMACTOR_ATTEMPT-no}"
    opened = cli("run", "--key", "k", "--on-unavailable", "open", "--timeout", "200ms", "--", "sh", "-c", script)
    assert (opened.returncode, opened.stdout) == (0, "ran no\n")
    assert opened.stderr.startswith("idemactor: no server answers: the command runs unprotected\n")


def test_on_a_terminal_the_command_reads_it_and_ctrl_c_is_its_own(cli: Cli) -> None:
    script = "trap 'echo stopped; exit 9' INT; read line; echo got $line; while :; do sleep 0.05; done"
    pid, terminal = pty.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            os.execve(sys.executable, [*PROGRAM, "run", "--key", "tty", "--", "sh", "-c", script], cli.variables)
        os._exit(1)
    try:
        os.write(terminal, b"hello\n")
        said = read_until(terminal, b"got hello")
        os.write(terminal, b"\x03")
        said += read_until(terminal, b"in doubt until it is resolved")
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert b"stopped" in said
    assert os.waitstatus_to_exitcode(status) == 9


def read_until(terminal: int, wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        piece = os.read(terminal, 1_024)
        assert piece, said
        said += piece
    return said
