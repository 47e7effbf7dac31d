"""Configurations that somebody might write at night: they are used, or refused in words, which show no secret."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from idemactor.config import load
from idemactor.errors import ConfigError
from tests.fuzz.harness import fuzz

ROOT: Final = Path(__file__).parents[2]
MARK: Final = "marked-secret-of-nobody"
ENVIRONMENT: Final = {"STRIPE_SECRET": f"whsec_{MARK}", "EMPTY": "", "IDEMACTOR_SERVER__SHARDS": "4"}
MORE: Final = b"""
[server]
shards = 8
workers = 2
mailbox_max = 5000
durability = "process"
[http]
bind = ["127.0.0.1:0", "unix:/run/x.sock"]
[auth.tokens.one]
sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
tenant = "acme"
namespaces = ["*"]
role = "caller"
[namespaces.trade]
lease_ms = 5000
on_lease_expiry = "hold"
fingerprint = { required = true, include = ["/a"], exclude = ["/a/b"] }
[sources.mine]
id = ["header:X-Id", ["/a", "/b"]]
derive = ["/c"]
window_ms = 60000
[sources.stripe.verify]
secret_env = ["STRIPE_SECRET"]
[gateway]
bind = ["127.0.0.1:0"]
[[gateway.routes]]
path = "/orders"
upstream = "http://127.0.0.1:9000"
namespace = "trade"
[log]
level = "debug"
"""
WORDS: Final = (
    *(b"[", b"]", b"[[", b"]]", b"=", b'"', b"'", b'"""', b"\n", b"#", b".", b",", b"{", b"}", b"true", b"-1", b"0"),
    *(b"1979-05-27T07:32:00Z", b"inf", b"nan", b"0x7fffffffffffffffff", b"1e400", b"[server]\n", b"[auth.tokens.x]\n"),
    *(b'role = "operator"\n', b"[namespaces.default]\n", b"lease_ms = 1\n", b"\\u0000", b"\xff", b"\x00", b'"\\ud800"'),
    *(b'sha256 = "' + MARK.encode() + b'"\n', b'pattern = "(a+)+b"\n', b'format = "text"\n', b"[" * 200, b"a." * 200),
    *(
        b"[[gateway.routes]]\n",
        b'bind = ["0.0.0.0:1"]\n',
        b"insecure = true\n",
        b"tls_cert = 'x'\n",
        b"derive = 'body'\n",
    ),
    *(b'verify = { scheme = "github", secret_env = ["STRIPE_SECRET"] }\n', b"include = ['/a', '/~']\n", b"\r\n", b"\r"),
)


def test_configurations(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"

    def target(data: bytes) -> str:
        path.write_bytes(data)
        try:
            config = load(path, environment=ENVIRONMENT, flags={})
        except ConfigError as error:
            said = str(error)
            assert MARK not in said, "a secret in a message"
            return re.sub(r"\d+", "n", re.sub(r"[^ ]*c\.toml[:\d]*", "", said))[:40]
        assert MARK not in repr(config.tokens)
        return f"used {len(config.tokens)} {len(config.namespaces)}"

    shipped = [ROOT / "config.toml", ROOT / "examples/gateways/idemactor.toml", ROOT / "tests/gateway/sources.toml"]
    said = fuzz("configuration", target, [MORE, *(file.read_bytes() for file in shipped)], WORDS)
    assert any(words.startswith("used") for words in said)
    assert len(said) > 20
