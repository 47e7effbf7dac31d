"""The line that a tool leaves in the audit log of the server whose files it works on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from idemactor.errors import ConfigError, StartError, StorageError


@contextlib.contextmanager
def audited(config_path: Path | None, op: str, data_dir: Path | None) -> Iterator[None]:
    """While a tool works; what became of it is one line of ``log.audit_file``, where the configuration has one.

    Args:
        config_path: The server's configuration; None: nobody said where such a line goes.
        op: The command.
        data_dir: What it works on; None: the configuration's.

    Raises:
        StartError: The line could not be written: what an operator does would leave no trace.
    """
    if config_path is None:
        yield
        return
    from idemactor.config import load
    from idemactor.observability.audit import Audit
    from idemactor.observability.logs import Redact

    try:
        config = load(config_path, environment=os.environ)
    except ConfigError as error:
        raise StartError(str(error)) from error
    audit = Audit(config.log.audit_file, Redact(False, b""))
    if audit.path is None:
        yield
        return
    audit.prove_writable()
    where = (data_dir or config.server.data_dir).absolute()
    result = "failed"
    try:
        yield
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
        audit.happened(_user(), op, result, data_dir=where, sudo_user=os.environ.get("SUDO_USER"))


def _user() -> str:
    """The name of the user who runs this; the number where it has none."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
