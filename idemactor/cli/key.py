"""``idemactor key``: what a source makes of a request, without a server and without leaving a trace."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from idemactor.cli.command import fail, write_json
from idemactor.cli.exits import Exit, exit_of_code, table_of
from idemactor.errors import ConfigError, InvalidRequest, RequestError

_EXITS: Final = (Exit.DONE, Exit.USAGE, Exit.DENIED)
_EPILOG: Final = f"""\b
The request, on standard input, is one JSON object:
  {{"method": "POST", "path": "/hook?a=b", "headers": [["Content-Type", "application/json"]],
   "body": "..." or "body_b64": "..."}}

\b
Example:
  idemactor key --source tradingview < request.json

\b
Exit codes:
{table_of(*_EXITS)}"""


@click.command(epilog=_EPILOG)
@click.option("--source", required=True, metavar="NAME", help="Whose request it is.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file; config.toml, if there is one.")
def key(source: str, config: Path | None) -> None:
    """Show the key that a source finds in a request: a dry run.

    The answer is one line of JSON. It reads the server's own configuration and needs no server. What a reserve
    with this request would be refused for is said with the same code.
    """
    from idemactor.core.limits import BODY_BYTES_MAX

    # As much as the call over HTTP would take with the request in it.
    most = BODY_BYTES_MAX - len(json.dumps({"source": source, "request": ""}).replace('""}', "}"))
    data = sys.stdin.buffer.read(most + 1)
    try:
        if len(data) > most:
            detail = f"it is larger than {most} bytes: the body of a call has at most {BODY_BYTES_MAX}"
            raise InvalidRequest(detail, field="request")
        members = _key_of(source, data, config)
    except ConfigError as error:
        fail(str(error), Exit.USAGE)
    except RequestError as error:
        named = {} if error.field is None else {"field": error.field}
        write_json({"code": error.code.value, "detail": error.detail, **named})
        fail(error.detail, exit_of_code(error.code))
    write_json(members)


def _key_of(source: str, data: bytes, config: Path | None) -> Mapping[str, object]:
    # Only here: `--help` needs none of it.
    from idemactor.cli.serve import config_path
    from idemactor.config import load
    from idemactor.gateway.resolve import resolver_of
    from idemactor.wire.calls import KEY
    from idemactor.wire.requests import Dialect, Members, members_of
    from idemactor.wire.sourced import key_body
    from idemactor.wire.strict_json import InvalidJSON, parse

    sources = load(config_path(config), environment=os.environ).sources
    try:
        request = parse(data)
    except InvalidJSON as error:
        raise InvalidRequest(f"request: {error}", field="request") from None
    values = members_of(Members(KEY, Dialect.JSON), {"source": source, "request": request})
    return key_body(resolver_of(sources, lambda: time.time_ns() // 1_000_000)(values["source"], values["request"]))
