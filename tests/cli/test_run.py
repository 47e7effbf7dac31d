"""``idemactor run``: what its options may hold, and what it tells the command."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from idemactor.cli.child import Tail
from idemactor.cli.exits import Exit
from idemactor.cli.holding import command_environment
from idemactor.cli.run import codes, patience
from idemactor.client import Client
from idemactor.config import ServerConfig, load
from tests.cli.fake_client import FakeClient, install, invoke


@pytest.mark.parametrize(
    ("text", "found"),
    [("0", {0}), ("75,1-3", {75, 1, 2, 3}), (" 7 , 255", {7, 255}), ("0-255", set(range(256)))],
)
def test_lists_of_exit_codes(text: str, found: set[int]) -> None:
    assert codes(text) == found


@pytest.mark.parametrize("text", ["", ",", "1,", "-1", "256", "1-256", "3-1", "1-2-3", "x", "1.0", "٣", "1" * 5_000])
def test_what_is_no_list_of_exit_codes(text: str) -> None:
    with pytest.raises(click.BadParameter):
        codes(text)


def test_patience() -> None:
    assert (patience("for ever"), patience("5m"), patience("0")) == (True, 300_000, 0)


def test_an_exit_code_means_one_thing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    client: FakeClient = install(monkeypatch)
    result = invoke("run", "--key", "k", "--release-on", "0-3", "--", "true")
    assert result.exit_code == Exit.USAGE
    assert "--commit-on and --release-on both have 0." in result.stderr
    assert client.settings == []


def test_the_end_of_an_output() -> None:
    tail = Tail(4)
    for data in (b"ab", b"c", b"", b"defgh"):
        tail.add(data)
    assert (tail.kept, tail.dropped) == (b"efgh", 4)


async def test_what_the_command_is_told_is_no_setting_of_a_server() -> None:
    async with Client.in_memory() as client, client.hold("trade", "k") as hold:
        told = command_environment({"IDEMACTOR_TOKEN": "s3cret", "IDEMACTOR_ATTEMPT": "7"}, hold)
        assert told == {
            "IDEMACTOR_TOKEN": "s3cret",
            "IDEMACTOR_KEY": "k",
            "IDEMACTOR_NAMESPACE": "trade",
            "IDEMACTOR_OPERATION_ID": hold.operation_id,
            "IDEMACTOR_TAKEOVER": "false",
            "IDEMACTOR_ATTEMPT": "1",
            "IDEMACTOR_FENCING_TOKEN": "1",
        }
        hold.give_back()
    assert load(None, environment={**told, "_IDEMACTOR_COMPLETE": "bash_source"}, flags={}) == ServerConfig()
