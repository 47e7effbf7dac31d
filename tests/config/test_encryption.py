"""Keys from a file or the environment: what is a key, and what is said of what is none."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

import pytest

from idemactor.config import load
from idemactor.errors import ConfigError

ONE: Final = base64.b64encode(b"1" * 32).decode()
TWO: Final = base64.b64encode(b"2" * 32).decode()


def test_keys_come_from_a_file_the_first_one_first(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{TWO}\n{ONE}\n")
    (tmp_path / "config.toml").write_text(f'[server]\nencryption_key_file = "{tmp_path}/keys"\n')
    config = load(tmp_path / "config.toml", environment={})
    assert config.server.encryption_keys == (b"2" * 32, b"1" * 32)
    assert "222" not in repr(config)


def test_keys_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[server]\nencryption_key_env = "KEYS"\n')
    assert load(tmp_path / "config.toml", environment={"KEYS": f"{ONE}, {TWO}"}).server.encryption_keys == (
        b"1" * 32,
        b"2" * 32,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there are no keys"),
        ("not base64!", "key 1 is not Base64"),
        (f"{ONE} c2hvcnQ=", "key 2 has 5 bytes"),
        (f"{ONE} {ONE}", "key 2 is there twice"),
        (" ".join(base64.b64encode(bytes([n]) * 32).decode() for n in range(17)), "more than 16"),
    ],
)
def test_what_is_no_key_is_refused_and_never_quoted(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.toml").write_text('[server]\nencryption_key_env = "KEYS"\n')
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "config.toml", environment={"KEYS": text})
    assert words in str(caught.value)
    assert "server.encryption_key_env" in str(caught.value)
    assert ONE not in str(caught.value)


def test_a_file_or_a_variable_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[server]\nencryption_key_file = "/nowhere/keys"\n')
    with pytest.raises(ConfigError, match=r"encryption_key_file.*cannot be read: No such file"):
        load(tmp_path / "config.toml", environment={})
    (tmp_path / "config.toml").write_text('[server]\nencryption_key_env = "KEYS"\n')
    with pytest.raises(ConfigError, match=r"encryption_key_env.*no such variable"):
        load(tmp_path / "config.toml", environment={})


def test_both_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(ONE)
    settings = f'encryption_key_file = "{tmp_path}/keys"\nencryption_key_env = "KEYS"\n'
    (tmp_path / "config.toml").write_text(f"[server]\n{settings}")
    with pytest.raises(ConfigError, match="not both"):
        load(tmp_path / "config.toml", environment={"KEYS": TWO})
