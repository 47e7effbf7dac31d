"""Tokens that are read anew while the server runs (SIGHUP): all of ``[auth.tokens]``, and nothing else.

The whole file has to be as good as at a start, so that what is taken over is never what nobody could start with. Where
it is not, the tokens stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from idemactor.config.model import ServerConfig, TokenEntry
from idemactor.errors import ConfigError
from idemactor.observability import logs

_log: Final = logging.getLogger(__name__)


class TokenReloader:
    """Reads the tokens anew, and says in the log what changed.

    Args:
        config: What the server was started with.
        load: Reads the configuration again, from everything that it was read from. Raises: ConfigError.
    """

    def __init__(self, config: ServerConfig, load: Callable[[], ServerConfig]) -> None:
        self._config = config
        self._load = load
        self._tokens = config.tokens

    def tokens(self) -> tuple[TokenEntry, ...] | None:
        """All tokens there are from now on; None: they stay as they are."""
        try:
            found = self._load()
        except ConfigError as error:
            _keep(str(error))
            return None
        except Exception as error:  # Whatever reading a file runs into, the server goes on as it is.
            logs.log_event(_log, logging.ERROR, "tokens_kept", error)
            return None
        if self._tokens and not found.tokens:
            _keep("the configuration has no tokens left, which would open the server to everyone: that takes a restart")
            return None
        _say_what_changed(self._tokens, found.tokens)
        if replace(found, tokens=self._config.tokens) != self._config:
            detail = "other settings have changed too: they take a restart"
            logs.log_event(_log, logging.WARNING, "settings_not_reloaded", detail=detail)
        self._tokens = found.tokens
        return found.tokens


def _keep(reason: str) -> None:
    logs.log_event(_log, logging.ERROR, "tokens_kept", reason=reason)


def _say_what_changed(before: Sequence[TokenEntry], after: Sequence[TokenEntry]) -> None:
    old, new = {token.name: token for token in before}, {token.name: token for token in after}
    changed = [name for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]
    added, removed = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    logs.log_event(_log, logging.INFO, "tokens_reloaded", added=added, removed=removed, changed=changed)
