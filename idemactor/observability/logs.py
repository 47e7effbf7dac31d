"""The log: one JSON object a line on standard error, an event's name and its fields.

An event is logged with the standard library: ``log_event(logger, logging.INFO, "shard_opened", shard=3)``.
Neither a key nor a payload is written unless the configuration asks for it: what may show one passes
:class:`Redact` first.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TextIO

from idemactor.core.keys import Identity

ROOT: Final = "idemactor"
"""The logger above all of this program's."""

KEY_DIGEST_CHARS: Final = 12
"""How many hex digits of its digest stand for a key: enough to follow one through a log."""
PAYLOAD_CHARS_MAX: Final = 2_048
"""How much of a payload is shown where payloads are asked for."""

_FIELDS: Final = "idemactor_fields"
_OWN_MEMBERS: Final = frozenset({"at", "level", "event", "logger", "error"})


def configure(level: str, *, stream: TextIO | None = None, worker: int | None = None) -> None:
    """Sends this program's log, from ``level`` ("debug" to "error") up, to ``stream`` (standard error).

    Other libraries keep their own loggers; calling again replaces what was set. ``worker`` is which of several
    processes writes the lines: it is in each of them.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(worker))
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def log_event(
    logger: logging.Logger, level: int, event: str, /, error: BaseException | None = None, **fields: object
) -> None:
    """Logs ``event``, a name in snake case, with its fields; those that are None are left out.

    ``error`` adds a traceback: for what nobody foresaw, because its text may hold anything.
    """
    if logger.isEnabledFor(level):
        logger.log(level, "%s", event, extra={_FIELDS: fields}, exc_info=error)


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON.

    ``at`` is UTC by RFC 3339, ``level`` in lower case, ``event`` the name; ``error`` is a traceback. A field
    that would hide one of these gets an underscore, and a value that JSON has no word for is written as its
    text.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        if self._worker is not None:
            line["worker"] = self._worker
        fields: Mapping[str, object] = getattr(record, _FIELDS, {})
        for name, value in fields.items():
            if value is not None:
                line[f"{name}_" if name in _OWN_MEMBERS else name] = value
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        # ASCII throughout: nothing in a value can end the line early or disturb a terminal.
        return json.dumps(line, default=str)


@dataclass(frozen=True, slots=True)
class Redact:
    """Decides what of a key or a payload the log may show.

    Attributes:
        show: The configuration asks for keys and payloads in clear.
        salt: At most 64 random bytes: without them nobody finds a guessed key by its digest.
    """

    show: bool
    salt: bytes

    def log_key(self, identity: Identity) -> str:
        """What stands for a key in the log: a short digest of its identity, or all of that in clear."""
        if self.show:
            return "/".join(identity)
        digest = hashlib.blake2b(key=self.salt)
        for part in identity:
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(4, "big") + encoded)
        return digest.hexdigest()[:KEY_DIGEST_CHARS]

    def log_payload(self, payload: bytes) -> str | None:
        """What the log shows of a payload: its beginning where that is asked for, nothing otherwise."""
        if not self.show:
            return None
        return payload.decode("utf-8", "backslashreplace")[:PAYLOAD_CHARS_MAX]
