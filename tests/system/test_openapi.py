"""The OpenAPI document against a real server: no answer has a status, a type, a body or a field that it does not have.

Requests are made from the document by Schemathesis, those that fit it and those that do not. Some of its checks are
left out: whether all that fits is accepted, and all else refused. A schema cannot say all that a call asks for (the key
in the header *or* in the body, no lone surrogate), an item of a batch is refused in an answer that is a success, and
what gateways call takes any method.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from idemactor.core.limits import WAIT_MS_MAX
from tests.system.process import Server, assert_calm, environment
from tests.system.test_start import token_toml

EXAMPLES: Final = int(os.environ.get("FUZZ_EXAMPLES", "0"))
"""How many requests of a kind to make of each call; ``make fuzz`` sets it. None: a few, and not every case there is."""
SETTINGS: Final = """
[parameters]
"path.namespace" = "trade"
# A gateway says itself which status a refusal is to have, up to 599: that would look like a fault of the server's.
"query.deny" = 403
"""
CHECKS: Final = ",".join(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "missing_required_header",
    ]
)


@pytest.mark.parametrize("role", ["operator", "caller"])
def test_no_answer_is_undocumented(home: Path, seed: int, role: str) -> None:
    config = "[namespaces.trade]\nlease_ms = 1000\nrecords_max = 100\n" + token_toml("one", "let-me-in", role)
    settings = home / "schemathesis.toml"
    settings.write_text(SETTINGS)
    with Server(home, config) as server:
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run"]
        command += [f"http://{server.http}/openapi.json", "--checks", CHECKS, "--seed", str(seed), "--no-color"]
        command += ["--max-examples", str(EXAMPLES)] if EXAMPLES else ["--max-examples", "3", "--phases", "fuzzing"]
        # A poll of what is empty, or a wait for a key, is answered only after as long as was asked for.
        command += ["-H", "Authorization: Bearer let-me-in", "--request-timeout", str(WAIT_MS_MAX // 1_000 + 5)]
        ran = subprocess.run(
            command, capture_output=True, text=True, env=environment(), cwd=home, timeout=1_800, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert " generated, " in ran.stdout, ran.stdout
        assert server.alive
        assert_calm(server)
