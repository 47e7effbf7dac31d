"""``idemactor dispatch``."""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from idemactor.cli.acquiring import EXITS, completed_lines
from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.durations import METAVAR, duration
from idemactor.cli.inputs import header, payload_options, source

if TYPE_CHECKING:
    from idemactor.client import Completed, Dispatched

_EXAMPLE = """\
id=$(idemactor dispatch order-17 --body @order.json --content-type application/json --quiet)
idemactor operation "$id" --wait"""


def intent_file(text: str) -> Mapping[str, Any]:
    """The type of ``--intent-file``: a file that holds the intent as the contract has it, as JSON."""
    try:
        found = json.loads(source(text if text == "-" else f"@{text.removeprefix('@')}"))
    except ValueError:
        raise click.BadParameter("it is not JSON.") from None
    known = {"content_type", "body", "body_b64", "headers"}
    if not isinstance(found, dict) or not known.issuperset(found):
        raise click.BadParameter("it is an object with content_type, body or body_b64, and headers.")
    return found


@client_command(example=_EXAMPLE, exits=EXITS)
@click.argument("key")
@click.option("--intent-file", "intent", type=intent_file, metavar="FILE|-", help="The whole intent, as JSON.")
@click.option("--body", type=source, metavar="TEXT|@FILE|-", help="What the destination gets, byte by byte.")
@click.option("--content-type", metavar="TEXT", help="Of the body.")
@click.option("--header", "headers", type=header, multiple=True, metavar="'NAME: VALUE'", help="Repeatable.")
@payload_options
@click.option("--order-key", metavar="TEXT", help="Intents of one are delivered strictly one after the other.")
@click.option("--not-before", type=int, metavar="MS", help="When it may first be sent, ms since the epoch.")
@click.option("--expires-in", "expires_in_ms", type=duration, metavar=METAVAR, help="How long it is worth sending.")
@click.option("--ttl", "ttl_ms", type=duration, metavar=METAVAR, help="How long its outcome is kept.")
@click.option("--quiet", "-q", is_flag=True, help="Write nothing but the operation's id.")
def dispatch(
    call: Call,
    key: str,
    intent: Mapping[str, Any] | None,
    body: bytes | None,
    content_type: str | None,
    headers: tuple[tuple[str, str], ...],
    quiet: bool,
    **asked: Any,
) -> None:
    """Hand over what is to be done under KEY: it is kept, and delivered at least once.

    Exit code 0 means that the server has it, now or from before: do not do it yourself.
    """
    if intent is not None:
        if body is not None or content_type is not None or headers:
            raise click.UsageError("--intent-file stands alone: it has the body, its type and its headers.")
        body, content_type, headers = _parts(intent)

    def show(result: Dispatched | Completed) -> Iterable[str]:
        from idemactor.cli.output import pairs, safe
        from idemactor.client import Completed

        if isinstance(result, Completed):
            return [result.operation_id] if quiet else completed_lines(key, result)
        if quiet:
            return [result.operation_id]
        repeated = " (repeated: it was handed over before)" if result.repeated else ""
        rows = [("dispatched", safe(key) + repeated), ("operation", safe(result.operation_id))]
        return pairs([*rows, ("state", str(result.state))])

    answer(
        call,
        lambda client, namespace: client.dispatch(
            namespace, key, body or b"", content_type=content_type, headers=headers or None, **asked
        ),
        show,
        acquiring=True,
    )


def _parts(intent: Mapping[str, Any]) -> tuple[bytes, str | None, tuple[tuple[str, str], ...]]:
    text, encoded, headers = intent.get("body"), intent.get("body_b64"), intent.get("headers")
    try:
        body = text.encode() if text is not None else binascii.a2b_base64(encoded or "", strict_mode=True)
        given = headers.items() if isinstance(headers, Mapping) else headers or ()
        pairs = tuple((str(name), str(value)) for name, value in given)
    except (AttributeError, TypeError, ValueError):
        raise click.UsageError("--intent-file: its body or its headers are not as the contract has them.") from None
    if text is not None and encoded is not None:
        raise click.UsageError("--intent-file: it has body or body_b64, not both.")
    return body, intent.get("content_type"), pairs
