"""Names of HTTP header fields, for the doors and gateways; the rules are those of ``core/field_names.py``."""

from __future__ import annotations

from idemactor.core.field_names import HOP_BY_HOP, TOKEN, plain_name

__all__ = ["HOP_BY_HOP", "TOKEN", "plain_name"]
