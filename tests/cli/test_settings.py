"""Whom a command talks to: flags, environment, file, defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from idemactor.cli.settings import FILE_BYTES_MAX, Given, Settings, UsageProblem, default_file, settings_from

DEFAULTS = Settings("127.0.0.1:8788", None, "default", False, None, None, None, 5_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.toml"


def test_without_any_source(tmp_path: Path) -> None:
    assert settings_from(Given(), {"XDG_CONFIG_HOME": str(tmp_path)}, None) == DEFAULTS


def test_a_flag_wins_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text('address = "file:1"\nnamespace = "from_file"\ntoken = "file"\ntimeout = "7s"\n')
    environment = {"IDEMACTOR_ADDRESS": "environment:1", "IDEMACTOR_NAMESPACE": "from_environment"}
    found = settings_from(Given(address="flag:1"), environment, file)
    assert (found.address, found.namespace, found.token, found.timeout_ms) == (
        *("flag:1", "from_environment", "file"),
        7_000,
    )


def test_an_empty_variable_says_nothing(file: Path) -> None:
    file.write_text('address = "file:1"\n')
    assert settings_from(Given(), {"IDEMACTOR_ADDRESS": "", "IDEMACTOR_TOKEN": ""}, file).address == "file:1"


def test_the_default_file_is_read_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "idemactor").mkdir()
    (tmp_path / "idemactor" / "client.toml").write_text('address = "there:1"\n')
    assert settings_from(Given(), {"XDG_CONFIG_HOME": str(tmp_path)}, None).address == "there:1"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_file({}) == tmp_path / ".config" / "idemactor" / "client.toml"


def test_a_token_file_is_beside_the_file_that_names_it(file: Path) -> None:
    file.write_text('token_file = "token"\n')
    (file.parent / "token").write_text("s3cret\n")
    assert settings_from(Given(), {}, file).token == "s3cret"
    # A nearer source wins in whichever form it has the token.
    assert settings_from(Given(), {"IDEMACTOR_TOKEN": "nearer"}, file).token == "nearer"
    (file.parent / "other").write_text("flag's")
    flags = Given(token_file=file.parent / "other")
    assert settings_from(flags, {"IDEMACTOR_TOKEN": "farther"}, file).token == "flag's"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("adress = 'x'", "adress: no such setting; there are address,"),
        ("address = 1", "address: must be text"),
        ("tls = 'yes'", "tls: must be true or false"),
        ("timeout = 'soon'", "timeout: a duration is"),
        ("address =", "is not valid TOML"),
        ("a = " + "[" * 10_000, "is not valid TOML"),
        ("token = 'a'\ntoken_file = 'b'", "token and token_file exclude each other"),
        ("token_file = 'missing'", "missing: cannot be read: No such file or directory"),
        ("token_file = 'client.toml.empty'", "holds no token"),
        ("tls_cert = 'c.pem'", "tls_cert and tls_key go together"),
        ("tls = false\ntls_ca = 'c.pem'", "TLS is off, and there are settings for it"),
        ("#" * FILE_BYTES_MAX + "#", f"is larger than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_in_one_line(file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    (file.parent / "client.toml.empty").write_text("\n")
    with pytest.raises(UsageProblem) as caught:
        settings_from(Given(), {}, file)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_or_not_there(file: Path) -> None:
    with pytest.raises(UsageProblem, match="cannot be read: No such file or directory"):
        settings_from(Given(), {}, file)
    file.write_bytes(b"\xff")
    with pytest.raises(UsageProblem, match="is not UTF-8 text"):
        settings_from(Given(), {}, file)


def test_any_setting_for_tls_turns_it_on(file: Path) -> None:
    file.write_text("tls_ca = 'ca.pem'\n")
    found = settings_from(Given(), {}, file)
    assert (found.tls, found.tls_ca) == (True, file.parent / "ca.pem")
    file.write_text("tls = true\n")
    assert settings_from(Given(), {}, file).tls
    assert not settings_from(Given(tls=False), {}, file).tls
