"""No error line of the configuration repeats what may be a secret in the wrong place."""

from __future__ import annotations

from pathlib import Path

import pytest

from idemactor.config import load
from idemactor.errors import ConfigError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DISPATCH = '[namespaces.orders.dispatch]\nurl = "http://127.0.0.1:9000/"\n'


def refusal(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> str:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environment=environment)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f'{DISPATCH}secret_env = "SECRET"',
        f'{DISPATCH}secret_env = ["SECRET", "SECRET"]',
        f'{DISPATCH}secret_env = [["SECRET"]]',
        '[sources.github.verify]\nsecret_env = "SECRET"',
        '[server]\nencryption_key_env = "SECRET"',
        '[auth.tokens."SECRET"]\nrole = "caller"',
        '[auth.tokens]\n"SECRET" = "caller"',
        '[auth."SECRET"]',
        '[auth.tokens.x]\n"SECRET" = 1',
        '[auth.tokens.x]\nsha256 = "SECRET"',
    ],
)
@pytest.mark.parametrize("secret", [SECRET, SECRET + "/+=", "Abc-def"])
def test_a_secret_in_the_wrong_place_is_not_repeated(tmp_path: Path, text: str, secret: str) -> None:
    assert secret not in refusal(tmp_path, text.replace("SECRET", secret))


@pytest.mark.parametrize(("groups", "size"), [(1, 6), (3, 18), (11, 66)])
def test_a_key_that_signs_has_the_length_that_standard_webhooks_asks_for(
    tmp_path: Path, groups: int, size: int
) -> None:
    secret = "whsec_" + "c2VjcmV0" * groups
    said = refusal(tmp_path, f'{DISPATCH}secret_env = "S"', {"S": secret})
    assert f"S: its key has {size} bytes, and Standard Webhooks asks for 24 to 64" in said
    assert "openssl rand -base64 32" in said
    assert secret not in said
