"""``[sources.NAME]``: shipped sources overridden field by field, others in the same form, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from idemactor.config import ServerConfig, load
from idemactor.errors import ConfigError
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.source import Answers, Bucket, Format, Normaliser, Source, Verify
from idemactor.gateway.verify import Scheme

SECRET = "whsec_" + "c2VjcmV0" * 4
SIGNALS = """
[namespaces.trade]

[sources.signals]
namespace = "trade"
format = "json"                            # "form", "text" (with pattern = "..." naming its fields), "bytes"
id = ["header:X-Delivery-Id", "/id"]       # the source's own id, in order of preference
derive = ["/exchange", "/symbol", "/action", "/quantity"]    # else a key from these, all required
normalise = { "/symbol" = ["trim", "upper"], "/quantity" = ["decimal"] }
mode = "/test"                             # live and test never share a key
window_ms = 60000                          # or bucket = "minute"
nonce = "/nonce"                           # optional: makes two intended twins two
exclude = ["/apiKey", "/price"]            # not in the fingerprint
secrets = ["/apiKey", "header:Authorization"]
verify = { scheme = "standard-webhooks", secret_env = "SIGNALS_SECRET" }
retry_horizon_ms = 15000
answers = { completed = 200, in_flight = 409, in_doubt = 409, mismatch = 422, unavailable = 503 }
"""


def loaded(tmp_path: Path, text: str, environment: Mapping[str, str] | None = None) -> ServerConfig:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return load(file, environment=environment)


def problems(tmp_path: Path, text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """The lines of the error, each with the number of its line in ``text`` first."""
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text, environment)
    return [re.sub(r"^.*config\.toml:?", "", line) for line in str(caught.value).splitlines()]


def test_the_form_in_full(tmp_path: Path) -> None:
    config = loaded(tmp_path, SIGNALS, {"SIGNALS_SECRET": SECRET})
    assert config.sources["signals"] == Source(
        "signals",
        namespace="trade",
        format=Format.JSON,
        id=("header:X-Delivery-Id", "/id"),
        derive=("/exchange", "/symbol", "/action", "/quantity"),
        normalise={"/symbol": (Normaliser.TRIM, Normaliser.UPPER), "/quantity": (Normaliser.DECIMAL,)},
        mode="/test",
        window_ms=60_000,
        nonce="/nonce",
        exclude=("/apiKey", "/price"),
        secrets=("/apiKey", "header:Authorization"),
        verify=Verify(Scheme.STANDARD_WEBHOOKS, ("SIGNALS_SECRET",), (SECRET,)),
        retry_horizon_ms=15_000,
        answers=Answers(200, 409, 409, 422, 503),
    )
    assert {name: source for name, source in config.sources.items() if name != "signals"} == SHIPPED


def test_without_any_the_shipped_ones_are_there(tmp_path: Path) -> None:
    config = loaded(tmp_path, "[namespaces.other]\nttl_ms = 1\n")
    assert all(config.sources[name] is source for name, source in SHIPPED.items())


def test_a_shipped_source_is_overridden_field_by_field(tmp_path: Path) -> None:
    text = """
[sources.tradingview]
window_ms = 120000
answers = { completed = 204 }
[sources.stripe]
verify = { secret_env = ["NEW", "OLD"], tolerance_ms = 60000 }
[sources.hoox]
bucket = "minute"
"""
    config = loaded(tmp_path, text, {"NEW": "n", "OLD": "o"})
    tradingview = replace(SHIPPED["tradingview"], window_ms=120_000, answers=Answers(completed=204))
    assert config.sources["tradingview"] == tradingview
    assert config.sources["stripe"] == replace(
        SHIPPED["stripe"], verify=Verify(Scheme.STRIPE, ("NEW", "OLD"), ("n", "o"), 60_000)
    )
    assert config.sources["hoox"] == replace(SHIPPED["hoox"], bucket=Bucket.MINUTE)


def test_other_ways_to_write_it(tmp_path: Path) -> None:
    text = """
[sources.one]
derive = "body"
id = [["/a", "header:B"], "/c"]
[sources.two]
id = "query:id"
format = "text"
pattern = "(?P<a>.*)"
headers = ["X-Topic"]
client_key = false
ttl_ms = 5
derive = ["/a"]
bucket = "ttl"
"""
    config = loaded(
        tmp_path, text, {"IDEMACTOR_SOURCES__TWO__TTL_MS": "6", "IDEMACTOR_SOURCES__TWO__EXCLUDE": "query:x"}
    )
    assert config.sources["one"] == Source("one", derive=("body",), id=(("/a", "header:B"), "/c"))
    assert config.sources["two"] == Source(
        "two",
        id=("query:id",),
        format=Format.TEXT,
        pattern="(?P<a>.*)",
        headers=("X-Topic",),
        client_key=False,
        ttl_ms=6,
        derive=("/a",),
        bucket=Bucket.TTL,
        exclude=("query:x",),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('namespace = "nowhere"', '2: sources.x.namespace: there is no namespace "nowhere"; there are default'),
        ('format = "xml"', '2: sources.x.format: must be "auto" or "json" or "form" or "text" or "bytes", not "xml"'),
        ("id = [7]", "2: sources.x.id: must be a list of"),
        ('id = [["/a", 7]]', "2: sources.x.id: must be a list of"),
        ('id = ["body"]', "2: sources.x.id: 'body' has no place here"),
        ('derive = ["a"]', '2: sources.x.derive: must be a list of "header:NAME"'),
        ('derive = ["/a", "/a"]', '"/a" is in it twice'),
        ('normalise = { "/a" = ["round"] }', '2: sources.x.normalise."/a": must be a list of "trim", "upper"'),
        ('normalise = { "a" = ["trim"] }', "2: sources.x.normalise: 'a':"),
        ('mode = "test"', '2: sources.x.mode: must be "header:NAME"'),
        ('bucket = "hour"', '2: sources.x.bucket: must be "window" or "minute" or "ttl", not "hour"'),
        ("window_ms = 0", "2: sources.x.window_ms: must be an integer from 1 to"),
        ('pattern = "("', '2: sources.x.pattern: only a body of format "text" has a pattern'),
        ('exclude = ["header:X-A"]', "2: sources.x.exclude: 'header:X-A' has no place here: header fields never count"),
        ('derive = ["/a"]\nsecrets = ["/a"]', "2: sources.x.derive: '/a' is a secret, or holds one"),
        ("retry_horizon_ms = -1", "2: sources.x.retry_horizon_ms: must be an integer from 0 to"),
        ("answers = { completed = 100 }", "2: sources.x.answers.completed: must be an integer from 200 to 599"),
        ("answers = { done = 200 }", "2: sources.x.answers.done: no such setting; there are completed"),
        ("windowms = 1", "2: sources.x.windowms: no such setting; did you mean window_ms?"),
        ("ttl = 1", "2: sources.x.ttl: no such setting; did you mean"),
        ("answer = { completed = 200 }", "2: sources.x.answer: no such setting; did you mean answers?"),
        ("normalize = { }", "2: sources.x.normalize: no such setting; did you mean normalise?"),
        ("verifies = true", "2: sources.x.verifies: no such setting; did you mean verify?"),
        ("zzz = 1", "normalise, pattern, retry_horizon_ms, secrets, ttl_ms, verify, window_ms"),
        ('exclude = ["body"]', "2: sources.x.exclude: 'body' has no place here: only members and parameters"),
        ("window_ms = 5", "2: sources.x.window_ms: has no effect without derive"),
        ('bucket = "ttl"', "2: sources.x.bucket: has no effect without derive"),
        ('nonce = "/n"', "2: sources.x.nonce: has no effect without derive"),
        ('id = ["/a", "/a"]', "2: sources.x.id: it names something twice"),
        ('id = ["header:A", "header:a"]', "2: sources.x.id: it names something twice"),
        ('derive = ["/0"]\nsecrets = ["/apiKey"]', "2: sources.x.derive: '/0' is a secret, or holds one"),
        (
            'secrets = ["header:Idempotency-Key"]',
            "2: sources.x.secrets: 'header:Idempotency-Key' is the",
        ),
        (
            'format = "text"\npattern = "(?P<a>(?P<s>.))"\nsecrets = ["/s"]',
            "3: sources.x.pattern: the group s is a secret within the group a",
        ),
        (
            'verify = { scheme = "github", secret_env = "S", tolerance_ms = 5 }',
            '2: sources.x.verify.tolerance_ms: stands beside the scheme "github", which signs no time',
        ),
        (
            'verify = { scheme = "github", secret_env = "BLANK" }',
            "2: sources.x.verify.secret_env: the secret has white space at its ends",
        ),
        ('verify = "x"', "2: sources.x.verify: must be a table"),
        ('verify = { secret_env = "S" }', '2: sources.x.verify.scheme: is missing; it must be "standard-webhooks" or'),
        ('verify = { scheme = "github" }', "2: sources.x.verify.secret_env: is missing"),
        ('verify = { scheme = "hmac", secret_env = "S" }', '2: sources.x.verify.scheme: must be "standard-webhooks"'),
        ('verify = { scheme = "github", secret_env = [] }', "2: sources.x.verify.secret_env: must be the name"),
        ('verify = { scheme = "github", secret_env = "IDEMACTOR_S" }', "begins with IDEMACTOR_, as settings do"),
        (
            'verify = { scheme = "github", secret_env = "ABSENT" }',
            "2: sources.x.verify.secret_env: the environment variable ABSENT is not set",
        ),
        (
            'verify = { scheme = "svix", secret_env = "S" }',
            '2: sources.x.verify.secret_env: the secret is "whsec_" and base64',
        ),
    ],
)
def test_what_is_refused_is_named_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    found = problems(tmp_path, f"[sources.x]\n{line}\n", {"S": "s3cret?", "BLANK": "s3cret\n"})
    assert any(said in problem for problem in found), found
    assert not any("s3cret" in problem for problem in found)


@pytest.mark.parametrize("setting", ["verify", "answers", "normalise"])
def test_what_is_no_table_is_one_mistake(tmp_path: Path, setting: str) -> None:
    assert problems(tmp_path, f"[sources.x]\n{setting} = true\n") == [f"2: sources.x.{setting}: must be a table"]


def test_a_window_beside_another_bucket(tmp_path: Path) -> None:
    assert problems(tmp_path, '[sources.hoox]\nbucket = "ttl"\nwindow_ms = 5\n')[0].startswith(
        '3: sources.hoox.window_ms: stands beside bucket = "ttl"'
    )
    assert problems(tmp_path, "[sources.hoox-minute]\nwindow_ms = 90000\n")[0].startswith("2: sources.hoox-minute")


def test_a_blank_secret_is_no_secret(tmp_path: Path) -> None:
    text = '[sources.github]\nverify = { secret_env = ["A", "B"] }\n'
    for environment in ({"A": "a"}, {"A": "a", "B": ""}, {"A": "a", "B": "  "}):
        assert problems(tmp_path, text, environment)
    assert loaded(tmp_path, text, {"A": "a", "B": "b"}).sources["github"].verify


def test_a_name_that_is_none(tmp_path: Path) -> None:
    assert '1: sources."My Source"' in problems(tmp_path, '[sources."My Source"]\n')[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[sources.x]\nderive = "body"\nretry_horizon_ms = 60001\n', 3),
        ('[sources.x]\nderive = "body"\nwindow_ms = 29999\nclient_key = false\nretry_horizon_ms = 30000\n', 5),
        ("[sources.tradingview]\nwindow_ms = 1000\n", 2),
        ("[sources.stripe]\nttl_ms = 259199999\n", 2),
        ("[sources.x]\nttl_ms = 1000\nretry_horizon_ms = 1001\n", 3),
        ('[sources.hoox]\nbucket = "ttl"\nttl_ms = 29999\n', 3),
    ],
)
def test_a_memory_that_is_shorter_than_the_senders_is_refused(tmp_path: Path, text: str, line: int) -> None:
    [problem] = problems(tmp_path, text)
    assert problem.startswith(f"{line}: sources.")
    assert "a late resend would be taken for another operation" in problem


@pytest.mark.parametrize(
    "text",
    [
        '[sources.x]\nderive = "body"\nretry_horizon_ms = 60000\n',
        "[sources.x]\nttl_ms = 1000\nretry_horizon_ms = 1000\n",
        # Who says nothing keeps them for as long as that takes, whichever namespace they are in.
        "[namespaces.default]\nttl_ms = 1000\n[sources.x]\nretry_horizon_ms = 1001\n",
        '[namespaces.a]\nttl_ms = 1000\n[sources.hoox]\nnamespace = "a"\n',
        "[sources.stripe]\nttl_ms = 259200000\n",
        "[namespaces.default]\nttl_ms = 1\n[sources.stripe]\nttl_ms = 259200000\n",
        # Nobody configured a source: what is shipped is in nobody's way.
        "[namespaces.default]\nttl_ms = 1\n",
    ],
)
def test_a_memory_that_is_long_enough(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, text)
