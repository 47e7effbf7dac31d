"""The sources that need no configuration, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from idemactor.gateway.source import Source

SHIPPED: Final[Mapping[str, Source]] = {"http": Source("http")}
