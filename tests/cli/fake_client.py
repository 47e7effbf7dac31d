"""A client that answers what a test tells it to, and the command line around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import pytest
import trio
from click.testing import CliRunner, Result

from idemactor.cli import connection
from idemactor.cli.main import main
from idemactor.cli.settings import Settings


class FakeClient:
    """Remembers what it was asked; answers in order, raising what is an exception."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.settings: list[Settings] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await trio.lowlevel.checkpoint()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            await trio.lowlevel.checkpoint()
            self.calls.append((name, arguments, {n: v for n, v in named.items() if v is not None}))
            answer = self.answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


def install(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """Have every command talk to the fake that this returns."""
    client = FakeClient()

    def open_client(settings: Settings, **_how: bool) -> FakeClient:
        client.settings.append(settings)
        return client

    monkeypatch.setattr(connection, "open_client", open_client)
    return client


def invoke(*arguments: str, stdin: bytes | None = None, environment: dict[str, str] | None = None) -> Result:
    """The command line, in this process."""
    return CliRunner().invoke(
        main, arguments, input=stdin, env=environment, catch_exceptions=False, prog_name="idemactor"
    )
