"""The line that a tool leaves in the audit log of the server whose files it works on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from idemactor.errors import StartError, StorageError
from idemactor.observability.audit import Audit, line_of
from idemactor.observability.logs import Redact

if TYPE_CHECKING:
    from idemactor.cli.tools import Told


@contextlib.contextmanager
def audited(told: Told, op: str, data_dir: Path | None) -> Iterator[Told]:
    """While a tool works; what became of it is one line of ``log.audit_file``, where the configuration has one.

    A line that cannot be written any more is told on standard error, all of it.

    Args:
        told: What the tool goes by; without an ``audit_file`` nobody said where such a line goes.
        op: The command.
        data_dir: What it works on; None: the configuration's.

    Raises:
        StartError: The line could not be written: what an operator does would leave no trace.
    """
    if told.audit_file is None or told.server is None:
        yield told
        return
    audit = Audit(told.audit_file, Redact(False, b""))
    audit.prove_writable()
    where = (data_dir or told.server.data_dir).absolute()
    result = "failed"
    try:
        yield told
        result = "done"
    except KeyboardInterrupt:
        result = "interrupted"
        raise
    except StorageError:
        result = "damaged"
        raise
    except (StartError, OSError, SystemExit):
        result = "refused"
        raise
    finally:
        line = line_of(told.who, op, result, data_dir=where, sudo_user=os.environ.get("SUDO_USER"))
        try:
            audit.append(line)
        except OSError as error:
            lost = f"log.audit_file {told.audit_file} cannot be written: {error.strerror}; its line:"
            click.echo(f"idemactor: {lost} {line.decode()}", err=True, nl=False)
