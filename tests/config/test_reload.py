"""Tokens read anew: taken over where the whole file could be started with, else kept; the log says which and why."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from idemactor.config import Role, ServerConfig, TokenEntry
from idemactor.config.model import ServerSection
from idemactor.config.reload import TokenReloader
from idemactor.errors import ConfigError
from idemactor.observability import logs


def token(name: str, role: Role = Role.CALLER) -> TokenEntry:
    return TokenEntry(name, name.encode().ljust(32), "acme", ("*",), role)


STARTED = ServerConfig(tokens=(token("a"), token("b")))


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    yield stream
    logs.configure("info")


def told(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def failing(error: Exception) -> Callable[[], ServerConfig]:
    def load() -> ServerConfig:
        raise error

    return load


def test_what_changed_is_told_by_name(log: io.StringIO) -> None:
    found = replace(STARTED, tokens=(token("a", Role.OPERATOR), token("c")))
    assert TokenReloader(STARTED, lambda: found).tokens() == found.tokens
    [line] = told(log)
    assert (line["event"], line["added"], line["removed"], line["changed"]) == ("tokens_reloaded", ["c"], ["b"], ["a"])


def test_each_reload_is_compared_with_the_one_before(log: io.StringIO) -> None:
    files = iter([replace(STARTED, tokens=(token("a"),)), replace(STARTED, tokens=(token("a"), token("b")))])
    reloader = TokenReloader(STARTED, lambda: next(files))
    reloader.tokens()
    reloader.tokens()
    assert [(line["added"], line["removed"]) for line in told(log)] == [([], ["b"]), (["b"], [])]


@pytest.mark.parametrize("error", [ConfigError("c.toml:3: is wrong"), OSError("no disk"), RecursionError()])
def test_whatever_goes_wrong_they_stay(error: Exception, log: io.StringIO) -> None:
    assert TokenReloader(STARTED, failing(error)).tokens() is None
    [line] = told(log)
    assert (line["event"], line["level"]) == ("tokens_kept", "error")
    assert ("c.toml:3" in line.get("reason", "")) == isinstance(error, ConfigError)


def test_no_tokens_at_all_are_a_slip(log: io.StringIO) -> None:
    assert TokenReloader(STARTED, lambda: replace(STARTED, tokens=())).tokens() is None
    assert "restart" in told(log)[0]["reason"]
    # Where there were none, there may be none.
    assert TokenReloader(ServerConfig(), ServerConfig).tokens() == ()


def test_other_settings_are_not_taken_over_and_that_is_said(log: io.StringIO) -> None:
    found = replace(STARTED, server=ServerSection(mailbox_max=5_000))
    assert TokenReloader(STARTED, lambda: found).tokens() == STARTED.tokens
    assert [line["event"] for line in told(log)] == ["tokens_reloaded", "settings_not_reloaded"]
