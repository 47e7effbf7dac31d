"""What operators did: who, when, what, and what came of it, as lines of JSON.

With ``[log] audit_file`` they go to a file of their own, keys in clear: a person has to be able to say which key it
was, and the file is for the eyes of those who may see keys. Without it they are events of the log, where a digest
stands for a key as it does elsewhere. No line has an outcome, a payload or a bearer token in it.

The file is opened for each line, so that whoever rotates it only has to move it away.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from idemactor.core.keys import Identity
from idemactor.errors import StartError
from idemactor.observability.logs import Redact, log_event

FILE_MODE: Final = 0o600

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
                self._append(b"")
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
        fields: dict[str, Any] = {name: value for name, value in more.items() if value is not None}
        if self.path is not None:
            where = {} if identity is None else dict(zip(("tenant", "namespace", "key"), identity, strict=True))
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line = {"at": at, "who": who, "op": op, **where, **fields, "result": result}
            try:
                self._append(json.dumps(line, default=str).encode() + b"\n")
                return
            except OSError as error:
                log_event(_log, logging.ERROR, "audit_failed", what=f"{self.path} cannot be written: {error.strerror}")
        if identity is not None:
            fields |= {"tenant": identity[0], "namespace": identity[1], "key": self.redact.log_key(identity)}
        log_event(_log, logging.WARNING, "audit", who=who, op=op, result=result, **fields)

    def _append(self, line: bytes) -> None:
        assert self.path is not None
        descriptor = _created(self.path)
        if descriptor is None:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            # One write: lines of several workers do not mix.
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _created(path: Path) -> int | None:
    """The file, where it was not there; None where it was.

    What root makes is the directory's owner's: the server's, which could not write it otherwise once a tool was first.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    except FileExistsError:
        return None
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


NO_AUDIT: Final = Audit(None, Redact(False, b""))
"""Writes to the log; for whoever puts a server together without settings."""
