"""``idemactor policy``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from idemactor.cli.command import Call, client_command, converse, write, write_json
from idemactor.cli.durations import say_duration

if TYPE_CHECKING:
    from idemactor.cli.settings import Settings
    from idemactor.client import Client


@client_command(example="idemactor policy --namespace trade")
def policy(call: Call) -> None:
    """Show the settings of a namespace."""

    async def ask(client: Client, settings: Settings) -> Mapping[str, Any]:
        from idemactor.cli.answers import policy_members

        return policy_members(settings.namespace, await client.policy(settings.namespace))

    members = converse(call, ask)
    if call.as_json:
        write_json(members)
    else:
        write(policy_lines(members))


def policy_lines(members: Mapping[str, Any]) -> Iterable[str]:
    """The settings, for people: times also in words."""
    from idemactor.cli.output import pairs, safe

    return pairs([(name, safe(value)) for name, value in _flat("", members)])


def _flat(prefix: str, members: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in members.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif name.partition("_ms")[1] and isinstance(value, int):
            yield f"{prefix}{name}", f"{value} ({say_duration(value)})"
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", ", ".join(map(str, value)) or "(none)"
        else:
            yield f"{prefix}{name}", ("true" if value else "false") if isinstance(value, bool) else str(value)
