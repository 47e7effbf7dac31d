"""Commands as pages write them, and whether the command line would take them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from idemactor.cli.main import main

CONFIG: Final = Path(__file__).resolve().parents[2] / "config.toml"
PLACEHOLDERS: Final[Mapping[str, str]] = {"TOKEN": "7", "N": "2", "--config FILE": f"--config {CONFIG}"}
"""What stands for a number, or for a file that is there: it is no text that a command takes."""

_FENCE: Final = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE: Final = re.compile(r"(?:^|&& )idemactor (.+)$", re.MULTILINE)
_INLINE: Final = re.compile(r"`idemactor ([^`]+)`")


def commands_of(text: str) -> list[list[str]]:
    """The words of each command that a page tells to type, behind ``idemactor``; not those of ``console`` blocks."""
    blocks = _FENCE.findall(text)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in _LINE.findall(block)] + _INLINE.findall(prose)
    return [shlex.split(re.split(r" [|&;<>]", line)[0], comments=True) for line in lines]


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that is meant, one of a group's included, and what is said to it."""
    command: click.Command = main
    while isinstance(command, click.Group) and words:
        name, *words = words
        found = command.get_command(click.Context(main), name)
        assert found is not None, f"there is no command {name}"
        command = found
    return command, words


def parse(words: list[str]) -> click.Context:
    """What the command line makes of it, without running it.

    Raises:
        click.UsageError: It would refuse it.
    """
    command, said = command_of(words)
    text = "\0".join(said)
    for placeholder, meant in PLACEHOLDERS.items():
        written, means = placeholder.replace(" ", "\0"), meant.replace(" ", "\0")
        text = re.sub(rf"(?<![^\0]){re.escape(written)}(?![^\0])", means.replace("\\", r"\\"), text)
    text = re.sub(r"(?<=--config\0)/etc/[^\0]+", str(CONFIG), text)
    return command.make_context(words[0], text.split("\0") if text else [])


def takes_namespace(command: click.Command) -> bool:
    return any(param.name == "namespace" for param in command.params)
