"""``idemactor key``: the dry run without a server says what the server would say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from idemactor.cli.exits import Exit
from idemactor.cli.main import main
from idemactor.core.limits import BODY_BYTES_MAX
from tests.gateway.payloads import OWN, payloads

CASES = {case.id: case for case in payloads()}


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(request: Any, *arguments: str, environment: dict[str, str] | None = None) -> Result:
    given = request if isinstance(request, bytes) else json.dumps(request).encode()
    return CliRunner().invoke(main, ["key", *arguments], input=given, env=environment, catch_exceptions=False)


def request_of(case_id: str) -> dict[str, Any]:
    request: dict[str, Any] = CASES[case_id].content["request"]
    return request


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.id not in OWN], ids=lambda case: case.id)
def test_a_shipped_source_needs_no_configuration(case: Any) -> None:
    result = asked(case.content["request"], "--source", case.source.name)
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert list(told) == ["result", "key", "fingerprint", "rule", "source"]
    assert (told["result"], told["source"]) == ("key", case.source.name)
    assert not [secret for secret in case.secrets if secret in result.stdout]


def test_the_servers_own_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[sources.mine]\nid = "/id"\nformat = "json"\n')
    (tmp_path / "other.toml").write_text('[sources.mine]\nid = "/type"\nformat = "json"\n')
    request = request_of("h03-stripe-event")
    assert json.loads(asked(request, "--source", "mine").stdout)["key"] == "evt_1Qk3MadeUp0001"
    told = json.loads(asked(request, "--source", "mine", "--config", "other.toml").stdout)
    assert told["key"] == "payment_intent.succeeded"


@pytest.mark.parametrize(
    ("source", "request_", "field"),
    [
        ("stripes", {"method": "POST", "path": "/"}, "source"),
        ("stripe", {"method": "POST", "path": "/", "body": "{}"}, "/id"),
        ("stripe", {"method": "POST", "path": "/", "more": 1}, "request"),
        ("stripe", b"{", "request"),
        ("stripe", b"", "request"),
        ("stripe", b" " * 3_000_000, "request"),
    ],
)
def test_what_a_reserve_would_be_refused_for(source: str, request_: Any, field: str) -> None:
    result = asked(request_, "--source", source)
    assert result.exit_code == Exit.USAGE
    told = json.loads(result.stdout)
    assert (told["code"], told["field"]) == ("IDEMPOTENCY_INVALID_REQUEST", field)
    assert result.stderr == f"idemactor: {told['detail']}\n"


def test_a_request_is_as_large_as_the_call_may_be() -> None:
    """What a dry run takes, a reserve over HTTP takes."""
    room = BODY_BYTES_MAX - len(b'{"source": "stripe", "request": }')
    request = b'{"method":"POST","path":"/","body":"{\\"id\\":\\"e\\"}"}'
    assert asked(request.ljust(room), "--source", "stripe").exit_code == 0
    result = asked(request.ljust(room + 1), "--source", "stripe")
    assert (result.exit_code, json.loads(result.stdout)["field"]) == (Exit.USAGE, "request")


def test_a_sender_that_has_not_proved_who_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[sources.github]\nverify = { secret_env = "HOOK" }\n')
    request = request_of("h04-github-push")
    right, wrong = ({"HOOK": secret} for secret in ("made-up-github-secret", "another"))
    assert asked(request, "--source", "github", environment=right).exit_code == 0
    result = asked(request, "--source", "github", environment=wrong)
    assert result.exit_code == Exit.DENIED
    assert json.loads(result.stdout)["code"] == "IDEMPOTENCY_BAD_SIGNATURE"
    missing = asked(request, "--source", "github")
    assert (missing.exit_code, missing.stdout) == (Exit.USAGE, "")
    assert "config.toml:2: sources.github.verify.secret_env: the environment variable HOOK is not set" in missing.stderr


def test_help_says_what_the_request_looks_like() -> None:
    said = CliRunner().invoke(main, ["key", "--help"]).output
    assert '"headers": [["Content-Type", "application/json"]]' in said
    assert "idemactor key --source tradingview < request.json" in said
