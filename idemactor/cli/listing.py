"""Listings, page by page: what ``records`` and ``incidents`` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from idemactor.cli.command import Call, converse, warn, write, write_json
from idemactor.cli.inputs import stacked
from idemactor.core.limits import LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX

if TYPE_CHECKING:
    from idemactor.cli.settings import Settings
    from idemactor.client import Client

Item = Mapping[str, Any]

paging_options: Final = stacked(
    click.option(
        "--limit", type=click.IntRange(min=1), default=LIST_LIMIT_DEFAULT, help=f"How many; {LIST_LIMIT_DEFAULT}."
    ),
    click.option("--all", "everything", is_flag=True, help="All of them, however many."),
    click.option("--cursor", metavar="TEXT", help='Go on where an earlier list ended: its "next".'),
)


def list_pages(
    call: Call,
    method: str,
    filters: Mapping[str, object],
    *,
    limit: int,
    everything: bool,
    cursor: str | None,
    row: Callable[[Item, int], Sequence[str]],
    header: Sequence[str],
) -> None:
    """Write a listing as it comes; with ``--json`` each page is one line, the answer as it stands.

    Args:
        call: How the command was called.
        method: ``records`` or ``incidents``: the name of the call, and of the member that holds the items.
        filters: Further members of the call; None for what is left out.
        limit: How many items at most.
        everything: Whether there is no limit.
        cursor: Where to begin.
        row: The cells of an item, given the time.
        header: The heads of their columns.
    """

    async def ask(client: Client, settings: Settings) -> tuple[int, str | None]:
        from idemactor.client.flight import Flight

        left, at, count = limit, cursor, 0
        while True:
            size = LIST_LIMIT_MAX if everything else min(left, LIST_LIMIT_MAX)
            asked = {"namespace": settings.namespace, **filters, "limit": size, "cursor": at}
            given = {name: value for name, value in asked.items() if value is not None}
            page = await client.ask(Flight(method, given), settings.timeout_ms)
            _write_page(call, page, method, row, header if count == 0 else ())
            found, at = len(page[method]), page["next"]
            left, count = left - found, count + found
            if at is None or (left <= 0 and not everything):
                return count, at

    count, at = converse(call, ask)
    if not call.as_json:
        if count == 0:
            warn(f"no {method}")
        if at is not None:
            warn(f"there are more: go on with --cursor {at}, or list --all")


def _write_page(
    call: Call, page: Mapping[str, Any], method: str, row: Callable[[Item, int], Sequence[str]], header: Sequence[str]
) -> None:
    from idemactor.cli.output import aligned, now_ms

    if call.as_json:
        write_json(_as_json(page))
    elif page[method]:
        now = now_ms()
        rows = [row(item, now) for item in page[method]]
        write(aligned([header, *rows] if header else rows))


def _as_json(value: Any) -> Any:
    """An answer as JSON has it: the bytes in it are bodies."""
    from idemactor.cli.answers import body_members

    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for name, inner in value.items():
            found |= body_members(inner) if isinstance(inner, bytes) else {name: _as_json(inner)}
        return found
    return [_as_json(inner) for inner in value] if isinstance(value, list) else value
