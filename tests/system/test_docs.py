"""Every snippet of README, docs and the examples' own pages is run, and answers as it says.

What is run, by the language of its fence:

=======  ==========================================================================================================
console  the commands after ``$``, all of a page in one shell, against a server of the page's own; what follows a
         command is what it has to write, where ``...`` is anything and times and ids are any time and id; a JSON
         object that ends in ``,...}`` has at least those members
python   a program of its own where it names the server's address; else lines in the page's own session, with a
         ``client`` in memory, an ``exchange`` and an ``order``
toml     a configuration that the server takes
crontab  lines whose commands are run as cron runs them
text     nothing
=======  ==========================================================================================================
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import pytest
import trio

from idemactor.client import Client, Outcome, Policy
from idemactor.config import load
from idemactor.core.policy import OnLeaseExpiry
from tests.cli.documented import command_of, commands_of, parse
from tests.system.process import Server, environment
from tests.system.programs import fake_exchange, free_port, go_environment, require_go, webhook_gateway

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (
    "README.md",
    *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md") if page.name != "contract.md"),
    *sorted(f"docs/runbook/{page.name}" for page in (ROOT / "docs" / "runbook").glob("*.md")),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "examples").rglob("*.md")),
)
STARTS_SOMETHING: Final = ("make ", ".venv/bin/python examples/")
"""Commands that other tests run: what the tests are themselves started with, and what ``test_examples`` starts."""
NOT_OURS: Final = frozenset({"text"})
HTTP: Final = ("127.0.0.1:8787", "localhost:8787")
RPC: Final = "127.0.0.1:8788"
EXCHANGE: Final = "127.0.0.1:9100"
GATEWAY: Final = "127.0.0.1:9000"
INSTALLED: Final = "/opt/idemactor/.venv/bin/"
"""Where the pages pretend that this checkout is."""
PATIENCE_S: Final = 60.0
MARK: Final = "--- end of command: "

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(page: str, *languages: str) -> list[Snippet]:
    text = (ROOT / page).read_text()
    found = [
        Snippet(page, text[: match.start()].count("\n") + 1, match[1], match[2]) for match in _FENCE.finditer(text)
    ]
    assert text.count("```") == 2 * len(found), f"{page}: a fence is not closed, or indented"
    return [snippet for snippet in found if snippet.language in languages or not languages]


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if snippets(page, language)]


@pytest.fixture
def own(home: Path) -> Iterator[Server]:
    """A server as ``make serve`` starts it, with a data directory of its own."""
    with Server(home, (ROOT / "config.toml").read_text()) as running:
        yield running


def at(server: Server, text: str) -> str:
    """``text`` with this server's addresses for those of the default configuration."""
    for address in HTTP:
        text = text.replace(address, server.http)
    return text.replace(RPC, server.rpc)


def told(server: Server) -> dict[str, str]:
    """The environment of a snippet."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return environment({"PATH": path, "IDEMACTOR_ADDRESS": server.rpc, "HOME": str(server.home)})


@pytest.mark.parametrize("page", PAGES)
def test_every_language_is_known(page: str) -> None:
    known = {"console", "python", "toml", "crontab"} | NOT_OURS
    for snippet in snippets(page):
        assert snippet.language in known, f"{snippet}: nothing runs {snippet.language!r}"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"


# ------------------------------------------------------------------------------------------------------------- console


@pytest.mark.parametrize("page", PAGES)
def test_a_command_that_is_not_run_would_be_taken(page: str) -> None:
    """Those of tables, prose and ``text`` blocks, which need what a page cannot have: a service, a backup, a disk."""
    for words in commands_of((ROOT / page).read_text()):
        if words[0] == "ready":  # The line that the server writes.
            continue
        _, said = command_of(words)
        if not said or said == ["--help"]:  # The name of a command, and no more.
            continue
        try:
            parse(words)
        except click.UsageError as error:
            pytest.fail(f"{page}: idemactor {' '.join(words)}: {error.format_message()}")


@dataclass(frozen=True)
class Step:
    """A command, and what it writes."""

    where: str
    command: str
    expected: tuple[str, ...]


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    for snippet in snippets(page, "console"):
        for number, line in enumerate(snippet.text.splitlines(), snippet.line + 1):
            if line.startswith("$ "):
                found.append(Step(f"{page}:{number}", line.removeprefix("$ "), ()))
            else:
                assert found, f"{page}:{number}: output without a command"
                found[-1] = Step(found[-1].where, found[-1].command, (*found[-1].expected, line))
    return [step for step in found if not step.command.startswith(STARTS_SOMETHING)]


@pytest.fixture
def demo(own: Server) -> Iterator[dict[str, str]]:
    """The exchange and the gateway of the examples, and where they are instead of where they say."""
    with fake_exchange() as exchange, webhook_gateway(own.rpc, exchange.url) as (port, _):
        yield {EXCHANGE: exchange.address, GATEWAY: f"127.0.0.1:{port}"}


@pytest.mark.parametrize("page", [page for page in pages_with("console") if steps(page)])
def test_console(page: str, own: Server, request: pytest.FixtureRequest) -> None:
    asked = steps(page)
    more: dict[str, str] = {}
    if page.startswith("examples/"):
        more = request.getfixturevalue("demo")
    if any(step.command.startswith("go ") for step in asked):
        require_go()
    script = ["shopt -s expand_aliases", f"cd {ROOT}"]
    for step in asked:
        command = at(own, step.command)
        for written, meant in more.items():
            command = command.replace(written, meant)
        script += [command, f"_s=$?; echo; echo '{MARK}'$_s; (exit $_s)"]
    exchange = {"EXCHANGE_URL": f"http://{more[EXCHANGE]}", "IDEMACTOR_URL": f"http://{own.http}"} if more else {}
    done = subprocess.run(
        ["bash"],
        input="\n".join(script) + "\n",
        env=told(own) | exchange | go_environment(own.home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = re.split(rf"^{MARK}(\d+)\n", done.stdout, flags=re.MULTILINE)
    assert len(said) == 2 * len(asked) + 1, done.stdout
    for step, output, code in zip(asked, said[0::2], said[1::2], strict=False):
        wrote = "\n".join(line.rstrip() for line in output.strip().splitlines())
        assert step.expected or code == "0", f"{step.where}: {step.command}: {wrote}"
        assert fits(step.expected, wrote), f"{step.where}: {step.command}\nwrote:\n{wrote}\ninstead of:\n" + "\n".join(
            step.expected
        )


_VARIES: Final = (
    (r"\b01[0-9a-f]{2}\.\.\.", r"01[0-9a-f-]+"),
    (r"\.\.\.", ".*"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", r"[0-9a-f]{8}-[0-9a-f-]{27}"),
    (
        r"(?:in )?\d+(?:ms|[smhd])(?: \d+[smhd])?(?: ago)?|\bnow\b",
        r"(?:now|(?:in )?\d+(?:ms|[smhd])(?: \d+[smhd])?(?: ago)?)",
    ),
    (r"\d{6,}", r"\d+"),
    (r"  +", r" +"),
)


ABRIDGED: Final = ",...}"
"""The end of a JSON object of which a page shows only some members, in whichever order."""


def fits(expected: tuple[str, ...], wrote: str) -> bool:
    """Whether a command wrote what its page says."""
    if len(expected) == 1 and expected[0].startswith("{") and expected[0].endswith("}"):
        abridged = expected[0].endswith(ABRIDGED)
        shown = json.loads(expected[0].removesuffix(ABRIDGED) + "}" if abridged else expected[0])
        found = json.loads(wrote)
        if abridged:
            found = {name: value for name, value in found.items() if name in shown}
        # As text, so that times and ids may vary.
        expected, wrote = (json.dumps(shown, sort_keys=True),), json.dumps(found, sort_keys=True)
    return re.fullmatch(pattern(expected), wrote, re.DOTALL) is not None


def pattern(expected: tuple[str, ...]) -> str:
    """What fits the lines of a page: times, ids and the width of columns are nobody's promise."""
    if not expected:
        return ".*"
    either = re.compile("|".join(f"({varies})" for varies, _ in _VARIES))
    text, made, end = "\n".join(line.rstrip() for line in expected).strip(), "", 0
    for match in either.finditer(text):
        assert match.lastindex is not None
        made += re.escape(text[end : match.start()]) + _VARIES[match.lastindex - 1][1]
        end = match.end()
    return made + re.escape(text[end:])


def test_other_ports_and_another_directory(home: Path) -> None:
    """README's one line about them, with free ports instead."""
    found = re.search(r"`((?:IDEMACTOR_\w+=\S+ )+)make serve`", (ROOT / "README.md").read_text())
    assert found is not None
    variables = dict(setting.split("=", 1) for setting in found[1].split())
    ports = {name: f"127.0.0.1:{free_port()}" for name in variables if name.endswith("BIND")}
    config = (ROOT / "config.toml").read_text()
    with Server(home, config, http=(), rpc=(), extra=variables | ports, data_dir="") as other:
        assert {other.http, other.rpc} == set(ports.values())
        assert (home / variables["IDEMACTOR_SERVER__DATA_DIR"]).is_dir()


# -------------------------------------------------------------------------------------------------------------- python


def programs(page: str) -> list[Snippet]:
    return [snippet for snippet in snippets(page, "python") if RPC in snippet.text or ".run(" in snippet.text]


def lines(page: str) -> list[Snippet]:
    return [snippet for snippet in snippets(page, "python") if snippet not in programs(page)]


@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)])
def test_python_programs(page: str, server: Server) -> None:
    """Programs that talk to a server, or start their own loop."""
    for snippet in programs(page):
        done = subprocess.run(
            [sys.executable, "-c", at(server, snippet.text)],
            env=told(server),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{snippet}: {done.stderr}"
        if "print(" in snippet.text:
            assert done.stdout.strip(), f"{snippet} wrote nothing"


class FakeExchange:
    """What the pages call ``exchange``: it answers at once, and remembers."""

    def __init__(self) -> None:
        self.placed: list[str] = []

    async def place(self, order: Mapping[str, Any], client_order_id: str) -> bytes:
        assert order
        self.placed.append(client_order_id)
        return b'{"success":true}'

    async def find(self, client_order_id: str) -> bytes | None:
        return b'{"success":true}' if client_order_id in self.placed else None


@pytest.mark.parametrize("page", [page for page in PAGES if lines(page)])
async def test_python_lines(page: str) -> None:
    """Lines that have a client already: all of a page are one session."""
    namespaces = {"default": Policy(), "trade": Policy(on_lease_expiry=OnLeaseExpiry.HOLD)}
    async with Client.in_memory(namespaces=namespaces) as client:
        session: dict[str, Any] = {
            "client": client,
            "exchange": FakeExchange(),
            "order": {"symbol": "BTCUSDT", "quantity": "0.001"},
            "Outcome": Outcome,
            "now_ms": lambda: time.time_ns() // 1_000_000,
        }
        for snippet in lines(page):
            code = compile(snippet.text, str(snippet), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with trio.fail_after(PATIENCE_S):
                answer = eval(code, session)
                if inspect.iscoroutine(answer):
                    await answer


# --------------------------------------------------------------------------------------------------- toml and crontab


@pytest.mark.parametrize("page", pages_with("toml"))
def test_toml(page: str, tmp_path: Path) -> None:
    for snippet in snippets(page, "toml"):
        path = tmp_path / "config.toml"
        path.write_text(snippet.text)
        secrets = re.findall(r'secret_env = "(\w+)"', snippet.text)
        load(path, environment=dict.fromkeys(secrets, "whsec_" + "c2VjcmV0" * 4))


@pytest.mark.parametrize("page", pages_with("crontab"))
def test_crontab(page: str, server: Server) -> None:
    """Every line is run twice: what it starts runs once."""
    for snippet in snippets(page, "crontab"):
        for line in snippet.text.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            command = cron_command(line)
            ran = server.home / "ran"
            ran.unlink(missing_ok=True)
            (job,) = re.findall(r"-- (\S+)", command)
            stub = server.home / Path(job).name
            stub.write_text(f"#!/bin/sh\necho once >> {ran}\n")
            stub.chmod(0o755)
            for _ in range(2):
                shell = ["/bin/sh", "-c", command.replace(job, str(stub))]
                subprocess.run(shell, env=told(server), cwd=server.home, timeout=PATIENCE_S, check=False)
            assert ran.read_text() == "once\n", f"{snippet}: {command}"


def cron_command(line: str) -> str:
    """What cron hands to the shell: five fields are the time, ``\\%`` is a percent sign, a bare one ends it."""
    command = line.split(None, 5)[5].replace(INSTALLED, "")
    assert not re.search(r"(?<!\\)%", command), f"cron would cut it off: {line}"
    return command.replace("\\%", "%")


def test_the_contract_says_nothing_twice() -> None:
    bullets = [
        line.rstrip(";. ") for line in (ROOT / "docs" / "contract.md").read_text().splitlines() if line[:2] == "- "
    ]
    assert [line for line in bullets if bullets.count(line) > 1] == []
