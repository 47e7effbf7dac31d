"""What operators did: who, when, what, and what came of it, as lines of JSON.

With ``[log] audit_file`` they go to a file of their own, keys in clear: a person has to be able to say which key it
was, and the file is for the eyes of those who may see keys. Without it they are events of the log, where a digest
stands for a key as it does elsewhere. No line has an outcome, a payload or a bearer token in it.

The file is opened for each line, so that whoever rotates it only has to move it away.
"""

from __future__ import annotations

import datetime
import errno
import json
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from idemactor.core.keys import Identity
from idemactor.errors import StartError
from idemactor.observability.logs import Redact, log_event

FILE_MODE: Final = 0o600

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE: Final = "it is a link, a pipe, or has a second name; name a file of its own"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Audit:
    """Where the lines go.

    Attributes:
        path: A file; None: the log.
        redact: What the log may show of a key.
    """

    path: Path | None
    redact: Redact

    def prove_writable(self) -> None:
        """Raises: StartError: The file cannot be written: what operators do would leave no trace."""
        if self.path is not None:
            try:
                self.append(b"")
            except OSError as error:
                raise StartError(f"log.audit_file {self.path} cannot be written: {error.strerror}") from error

    def happened(self, who: str, op: str, result: str, identity: Identity | None = None, **more: object) -> None:
        """Write a line. Never raises: what was done was done.

        Args:
            who: The name of the token; ``anonymous`` where the server has none.
            op: What they asked for.
            result: What they were told, by the name of the reply or the code of the refusal.
            identity: The key that it was about.
            more: What else tells one from another; None is left out.
        """
        if self.path is not None:
            try:
                self.append(line_of(who, op, result, identity, **more))
                return
            except OSError as error:
                log_event(_log, logging.ERROR, "audit_failed", what=f"{self.path} cannot be written: {error.strerror}")
        fields: dict[str, Any] = {name: value for name, value in more.items() if value is not None}
        if identity is not None:
            fields |= {"tenant": identity[0], "namespace": identity[1], "key": self.redact.log_key(identity)}
        log_event(_log, logging.WARNING, "audit", who=who, op=op, result=result, **fields)

    def append(self, line: bytes) -> None:
        """Write a line to the file, which there has to be one of.

        Raises:
            OSError: It cannot be written, or is none: whoever may write into its directory may have put a link there,
                or a pipe that nobody reads.
        """
        assert self.path is not None
        descriptor = _opened(self.path)
        try:
            # One write: lines of several workers do not mix.
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def line_of(who: str, op: str, result: str, identity: Identity | None = None, **more: object) -> bytes:
    """A line, as ``Audit.happened`` writes it, keys in clear; with its end."""
    fields = {name: value for name, value in more.items() if value is not None}
    where = {} if identity is None else dict(zip(("tenant", "namespace", "key"), identity, strict=True))
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"at": at, "who": who, "op": op, **where, **fields, "result": result}
    return json.dumps(line, default=str).encode() + b"\n"


def _opened(path: Path) -> int:
    """The file, made where it was not there.

    What root makes is the directory's owner's: the server's, which could not write it otherwise once a tool was first.

    Raises:
        OSError: It cannot be opened, or is no file that has this name alone.
    """
    try:
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        return _opened_file(path)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def _opened_file(path: Path) -> int:
    try:
        descriptor = os.open(path, _FLAGS | os.O_CREAT, FILE_MODE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise OSError(error.errno, _NO_FILE, str(path)) from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NO_FILE, str(path))
    return descriptor


NO_AUDIT: Final = Audit(None, Redact(False, b""))
"""Writes to the log; for whoever puts a server together without settings."""
