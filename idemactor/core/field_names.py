"""Names of HTTP header fields: what one may be, what belongs to a connection, and what is taken for the same. Pure."""

from __future__ import annotations

import functools
import re
from typing import Final

HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("proxy-authenticate", "proxy-authorization", "proxy-authentication-info", "http2-settings"),
    }
)
"""What belongs to one connection and never goes on (RFC 9110, section 7.6.1; RFC 9113 for ``HTTP2-Settings``)."""

TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What a name is made of (RFC 9110, section 5.6.2)."""

_NAMES: Final = 256
"""So many names are remembered as what they are taken for: the same few come with every message."""
_HYPHENS: Final = str.maketrans(dict.fromkeys("!#$%&'*+.^_`|~", "-"))


@functools.lru_cache(_NAMES)
def plain_name(name: str) -> str:
    """A field's name as the programs behind CGI and its like know it: they take ``X_A``, ``x.a`` and ``X-A`` for one.

    There every character of a variable's name that is neither a letter nor a digit becomes an underscore (RFC 3875,
    section 4.1.18, says so of the hyphen; servers do it to the rest of what a name may have).
    """
    return name.lower().translate(_HYPHENS)
