"""What the engine's answer says about an order: the rule of idemactor's gateway and relay, written down once more.

==================================================  =======================================
the answer                                          verdict
==================================================  =======================================
2xx with ``"success": true``                        SUCCEEDED
2xx with ``"success": false``                       FAILED
2xx whose JSON cannot be read, or says neither      AMBIGUOUS
400, 401, 403, 404, 422                             FAILED
429, 503; the connection was refused                NOT_EXECUTED: tried again
anything else, or no answer after it was sent       AMBIGUOUS: never taken for a no
==================================================  =======================================
"""

from __future__ import annotations

import enum
import json
from typing import Final

DEFINITE_FAILURE: Final = frozenset({400, 401, 403, 404, 422})
NOT_EXECUTED: Final = frozenset({429, 503})


class Verdict(enum.Enum):
    """What became of an order."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NOT_EXECUTED = "not_executed"
    AMBIGUOUS = "ambiguous"


def verdict_of(status: int, body: bytes) -> Verdict:
    """The verdict on an answer that arrived whole."""
    if status in NOT_EXECUTED:
        return Verdict.NOT_EXECUTED
    if status in DEFINITE_FAILURE:
        return Verdict.FAILED
    if not 200 <= status < 300:
        return Verdict.AMBIGUOUS
    try:
        told = json.loads(body)
    except ValueError:
        return Verdict.AMBIGUOUS
    success = told.get("success") if isinstance(told, dict) else None
    if success is True:
        return Verdict.SUCCEEDED
    return Verdict.FAILED if success is False else Verdict.AMBIGUOUS
