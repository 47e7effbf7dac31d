"""The configuration: what is taken from where, and that a mistake is named with its place and its way out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from idemactor.config import (
    DoorSection,
    Durability,
    LogLevel,
    LogSection,
    Role,
    ServerConfig,
    ServerSection,
    load,
)
from idemactor.config.sources import FILE_BYTES_MAX
from idemactor.core.fingerprint import FingerprintRule
from idemactor.core.policy import OnDoubt, OnDuplicate, OnLeaseExpiry, OnUnavailable, Policy
from idemactor.errors import ConfigError

PROJECT = Path(__file__).parents[2]
DIGEST = hashlib.sha256(b"a token").hexdigest()
TOKEN = f'[auth.tokens.gateway]\nsha256 = "{DIGEST}"\ntenant = "acme"\nnamespaces = ["*"]\nrole = "caller"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def load_text(
    file: Path,
    text: str,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> ServerConfig:
    file.write_text(text)
    return load(file, environment=environment, flags=flags)


def problems_of(file: Path, text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """The lines of the error, without the path of the file."""
    with pytest.raises(ConfigError) as caught:
        load_text(file, text, environment=environment)
    place = re.compile(rf"^{re.escape(str(file))}(:\d)?")
    return [
        place.sub(lambda at: f"line {at[1][1:]}" if at[1] else "file", line) for line in str(caught.value).splitlines()
    ]


def one_problem(file: Path, text: str, environment: Mapping[str, str] | None = None) -> str:
    (problem,) = problems_of(file, text, environment)
    return problem


# What is taken from where.


def test_nothing_given_is_all_defaults(file: Path) -> None:
    assert load(None) == load_text(file, "") == ServerConfig()
    config = load(None)
    assert config.server == ServerSection(data_dir=Path("data"), shards=None, durability=Durability.FULL)
    assert config.http == DoorSection(bind=("127.0.0.1:8787",))
    assert config.rpc == DoorSection(bind=("127.0.0.1:8788",))
    assert config.tokens == ()
    assert config.namespaces == {"default": Policy()}


def test_the_shipped_file_is_the_defaults_and_a_namespace_for_trades() -> None:
    expected = ServerConfig(namespaces={"default": Policy(), "trade": Policy(on_lease_expiry=OnLeaseExpiry.HOLD)})
    assert load(PROJECT / "config.toml") == expected


def test_the_settings_commented_out_in_the_shipped_file_exist(file: Path) -> None:
    text = (PROJECT / "config.toml").read_text()
    text = re.sub(r"^#(?=[\[a-z])", "", text, flags=re.MULTILINE).replace("64 hexadecimal digits", DIGEST)
    for name in ("server.pem", "server.key", "clients.pem"):
        path = file.with_name(name)
        path.write_text("PEM")
        text = text.replace(name, str(path))
    keys = file.with_name("encryption.keys")
    keys.write_text("a2V5IG9mIHRoaXJ0eS10d28gYnl0ZXMgZm9yIHRlc3Q=")
    text = text.replace("encryption.keys", str(keys))
    config = load_text(
        file,
        text,
        environment={
            "STRIPE_WEBHOOK_SECRET": "whsec_",
            "ORDERS_SIGNING_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        },
    )
    assert config.server.shards == 4
    assert config.server.encryption_keys
    assert config.sources["stripe"].verify is not None
    assert [route.prefix for route in config.gateway.routes] == ["/orders"]
    assert config.http.client_ca == file.with_name("clients.pem")
    assert config.tokens[0].role is Role.CALLER
    assert config.destinations["trade"].concurrency == 8


def test_every_setting_is_read(file: Path) -> None:
    for name in ("cert", "key", "ca"):
        file.with_name(name).write_text("PEM")
    config = load_text(
        file,
        f"""
        [server]
        data_dir = "/srv/dedup"
        shards = 8
        durability = "process"
        clock_backstep_max_ms = 1
        evict_after_ms = 1000
        mailbox_max = 4096
        queue_ms = 200
        workers = 3
        page_checksums = false
        [http]
        bind = ["0.0.0.0:80", "[::1]:0", "unix:run/http.sock"]
        tls_cert = "{file.with_name("cert")}"
        tls_key = "{file.with_name("key")}"
        client_ca = "{file.with_name("ca")}"
        insecure = true
        [rpc]
        bind = []
        [auth.tokens.gateway]
        sha256 = "{DIGEST.upper()}"
        tenant = "acme"
        namespaces = ["trade"]
        role = "operator"
        [log]
        level = "debug"
        payloads = true
        [namespaces.trade]
        lease_ms = 1
        ttl_ms = 34560000000
        on_lease_expiry = "hold"
        on_doubt = "retry"
        on_duplicate = "reject"
        on_unavailable = "open"
        unresolved_ttl_ms = 2
        outcome_max_bytes = 0
        records_max = 3
        lease_total_max_ms = 4
        unavailable_after_ms = 0
        [namespaces.trade.fingerprint]
        required = true
        include = ["/a~1b", ""]
        exclude = ["/at"]
        """,
    )
    section = ServerSection(Path("/srv/dedup"), 8, Durability.PROCESS, 1, 1000, 4096, 200, 3, page_checksums=False)
    assert config.server == section
    assert config.http == DoorSection(
        bind=("0.0.0.0:80", "[::1]:0", "unix:run/http.sock"),
        tls_cert=file.with_name("cert"),
        tls_key=file.with_name("key"),
        client_ca=file.with_name("ca"),
        insecure=True,
    )
    assert config.rpc == DoorSection(bind=())
    (token,) = config.tokens
    assert (token.name, token.sha256, token.tenant) == ("gateway", bytes.fromhex(DIGEST), "acme")
    assert (token.namespaces, token.role) == (("trade",), Role.OPERATOR)
    assert config.log == LogSection(LogLevel.DEBUG, payloads=True)
    assert config.namespaces == {
        "trade": Policy(
            lease_ms=1,
            ttl_ms=34560000000,
            on_lease_expiry=OnLeaseExpiry.HOLD,
            on_doubt=OnDoubt.RETRY,
            on_duplicate=OnDuplicate.REJECT,
            on_unavailable=OnUnavailable.OPEN,
            unresolved_ttl_ms=2,
            outcome_max_bytes=0,
            records_max=3,
            lease_total_max_ms=4,
            unavailable_after_ms=0,
            fingerprint=FingerprintRule(required=True, include=("/a~1b", ""), exclude=("/at",)),
        )
    }


def test_a_setting_left_out_has_the_built_in_default_not_that_of_the_namespace_default(file: Path) -> None:
    config = load_text(file, "[namespaces.default]\nttl_ms = 7\n[namespaces.trade]\nlease_ms = 8\n")
    assert config.namespaces == {"default": Policy(ttl_ms=7), "trade": Policy(lease_ms=8)}


def test_the_namespace_default_is_there_only_where_none_is_configured(file: Path) -> None:
    assert set(load_text(file, "[namespaces.trade]\n").namespaces) == {"trade"}


def test_flags_win_over_the_environment_and_that_over_the_file(file: Path) -> None:
    text = '[server]\ndata_dir = "file"\nshards = 1\nmailbox_max = 5000\n'
    environment = {"IDEMACTOR_SERVER__DATA_DIR": "environment", "IDEMACTOR_SERVER__SHARDS": "2"}
    config = load_text(file, text, environment=environment, flags={"server.shards": 3, "http.bind": ("[::1]:1",)})
    assert config.server == ServerSection(data_dir=Path("environment"), shards=3, mailbox_max=5000)
    assert config.http.bind == ("[::1]:1",)


@pytest.mark.parametrize(
    ("variable", "text", "read"),
    [
        ("IDEMACTOR_SERVER__DATA_DIR", "2024", lambda c: c.server.data_dir == Path("2024")),
        ("IDEMACTOR_SERVER__DATA_DIR", '"quoted"', lambda c: c.server.data_dir == Path("quoted")),
        ("IDEMACTOR_SERVER__DATA_DIR", "a\nb = 1", lambda c: c.server.data_dir == Path("a\nb = 1")),
        ("IDEMACTOR_SERVER__DURABILITY", "process", lambda c: c.server.durability is Durability.PROCESS),
        ("IDEMACTOR_SERVER__MAILBOX_MAX", "5_000", lambda c: c.server.mailbox_max == 5000),
        ("IDEMACTOR_HTTP__INSECURE", "true", lambda c: c.http.insecure),
        ("IDEMACTOR_HTTP__BIND", "localhost:1, [::1]:2", lambda c: c.http.bind == ("localhost:1", "[::1]:2")),
        ("IDEMACTOR_HTTP__BIND", '["localhost:1"]', lambda c: c.http.bind == ("localhost:1",)),
        ("IDEMACTOR_HTTP__BIND", "", lambda c: c.http.bind == ()),
        ("IDEMACTOR_NAMESPACES__A_B__TTL_MS", "5", lambda c: c.namespaces == {"a_b": Policy(ttl_ms=5)}),
        ("IDEMACTOR_ADDRESS", "somewhere", lambda c: c == ServerConfig()),
        ("IDEMACTOR_TOKEN", "secret", lambda c: c == ServerConfig()),
        ("PATH", "/bin", lambda c: c == ServerConfig()),
    ],
)
def test_environment(variable: str, text: str, read: object) -> None:
    config = load(None, environment={variable: text})
    assert callable(read)
    assert read(config)


# What is wrong, and where.


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[server]\nshard = 4\n", "line 2: server.shard: no such setting; did you mean shards?"),
        ("[sever]\n", "line 1: sever: no such setting; did you mean server?"),
        (
            "[log]\nlevel = 'info'\n\nzzz = 1\n",
            "line 4: log.zzz: no such setting; there are audit_file, level, payloads",
        ),
        (
            "[namespaces.a]\n'strange name' = 1\n",
            'line 2: namespaces.a."strange name": no such setting; there are ',
        ),
        (
            "shards = 4\n",
            "line 1: shards: no such setting; there are auth, gateway, http, log, namespaces, rpc, server",
        ),
        ("[server]\nshards = true\n", "line 2: server.shards: must be an integer from 1 to 1024, not true"),
        ("[server]\nshards = 4.0\n", "line 2: server.shards: must be an integer from 1 to 1024, not 4.0"),
        ("[server]\nshards = '4'\n", 'line 2: server.shards: must be an integer from 1 to 1024, not "4"'),
        ("[server]\nshards = 0\n", "line 2: server.shards: must be an integer from 1 to 1024, not 0"),
        ("[server]\nshards = 1025\n", "line 2: server.shards: must be an integer from 1 to 1024, not 1025"),
        ("[server]\nworkers = 0\n", "line 2: server.workers: must be an integer from 1 to 64, not 0"),
        (
            "[server]\nworkers = 3\nshards = 2\n",
            "line 2: server.workers: is 3, and there are 2 shards: each worker needs one",
        ),
        ("[server]\nqueue_ms = 99\n", "line 2: server.queue_ms: must be an integer from 100 to 60000"),
        ("[server]\nmailbox_max = 4095\n", "line 2: server.mailbox_max: must be an integer from 4096 to "),
        ("[server.shards]\n", "line 1: server.shards: must be an integer from 1 to 1024, not a table"),
        ("server = 4\n", "line 1: server: must be a table"),
        ("[[server]]\n", "line 1: server: must be a table"),
        (
            "[server]\ndurability = 'Full'\n",
            'line 2: server.durability: must be "full" or "process", not "Full"',
        ),
        ("[server]\ndata_dir = ''\n", 'line 2: server.data_dir: must be a path, not ""'),
        ("[server]\ndata_dir = 7\n", "line 2: server.data_dir: must be a path, not 7"),
        ("[http]\ninsecure = 'no'\n", 'line 2: http.insecure: must be true or false, not "no"'),
        ("[http]\ninsecure = 0\n", "line 2: http.insecure: must be true or false, not 0"),
        ("[http]\nbind = 'localhost:1'\n", "line 2: http.bind: must be a list of addresses, "),
        (
            "[namespaces.a]\nlease_ms = 0\n",
            "line 2: namespaces.a.lease_ms: must be an integer from 1 to 86400000",
        ),
        (
            "[namespaces.a]\nttl_ms = 34560000001\n",
            "line 2: namespaces.a.ttl_ms: must be an integer from 1 to 34560000000, not 34560000001",
        ),
        (
            "[namespaces.a]\nlease_total_max_ms = 5\n",
            "line 2: namespaces.a.lease_total_max_ms: lease_ms 300000 is more than lease_total_max_ms 5",
        ),
        (
            "[namespaces.a]\nlease_ms = 6\nlease_total_max_ms = 5\n",
            "line 2: namespaces.a.lease_ms: lease_ms 6 is more than lease_total_max_ms 5",
        ),
        (
            "[namespaces.Trade]\n",
            'line 1: namespaces."Trade": "Trade" is no name: it must be a lower-case letter',
        ),
        ("[namespaces]\ntrade = 1\n", "line 2: namespaces.trade: must be a table"),
        (
            "namespaces.a.on_doubt = 'never'",
            'line 1: namespaces.a.on_doubt: must be "hold" or "retry", not "never"',
        ),
        (
            "namespaces.a = { lease_ms = 1, leese_ms = 2 }",
            "line 1: namespaces.a.leese_ms: no such setting; did you",
        ),
        (
            "[namespaces.a.fingerprint]\ninclude = ['a']\n",
            'line 2: namespaces.a.fingerprint.include: must be a list of JSON Pointers (RFC 6901): "a": ',
        ),
        (
            "[namespaces.a.fingerprint]\nexclude = ['/a', '']\n",
            'line 2: namespaces.a.fingerprint.exclude: must be a list of JSON Pointers (RFC 6901): "": ',
        ),
        (
            "[log]\nlevel = 'loud'\n",
            'line 2: log.level: must be "debug" or "info" or "warning" or "error", not "loud"',
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_line(file: Path, text: str, problem: str) -> None:
    assert one_problem(file, text).startswith(problem)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("localhost", "has no port"),
        ("localhost:", "has no port from 0 to 65535"),
        ("localhost:http", "has no port from 0 to 65535"),
        ("localhost:65536", "has no port from 0 to 65535"),
        ("localhost:-1", "has no port from 0 to 65535"),
        (":80", "has no host"),
        ("::1:80", 'needs brackets around its IPv6 address: "[::1]:port"'),
        ("[127.0.0.1]:80", "has no IPv6 address between its brackets"),
        ("127.0.0.256:80", "has no valid host"),
        ("a b:80", "has no valid host"),
        ("unix:", "names no file"),
        ("unix:run/", "names no file"),
        ("unix:" + "x" * 108, "has a path of 108 bytes, and a socket's may have 107"),
        ("unix:" + "é" * 54, "has a path of 108 bytes, and a socket's may have 107"),
    ],
)
def test_a_wrong_address_is_explained(file: Path, address: str, why: str) -> None:
    problem = one_problem(file, f'[rpc]\nbind = ["127.0.0.1:1", "{address}"]\n')
    assert problem.startswith("line 2: rpc.bind: must be a list of addresses")
    assert f": {why}" in problem


def test_an_address_of_the_longest_path_is_taken(file: Path) -> None:
    bind = "unix:" + "x" * 107
    assert load_text(file, f'[rpc]\nbind = ["{bind}"]\n').rpc.bind == (bind,)


@pytest.mark.parametrize(
    "second",
    ["127.0.0.1:8787", "LOCALHOST:1", "[0:0:0:0:0:0:0:1]:2", "unix:./a.sock"],
)
def test_an_address_is_listened_on_once(file: Path, second: str) -> None:
    text = f"""
        http.bind = ["127.0.0.1:8787", "localhost:1", "[::1]:2", "unix:a.sock"]
        rpc.bind = ["{second}"]
        """
    assert one_problem(file, text).startswith(f'line 3: rpc.bind: "{second}" is the same address as "')


def test_any_free_port_may_be_asked_for_twice(file: Path) -> None:
    text = 'http.bind = ["127.0.0.1:0"]\nrpc.bind = ["127.0.0.1:0"]\n'
    assert load_text(file, text).rpc.bind == ("127.0.0.1:0",)


def test_the_same_text_twice_in_one_list(file: Path) -> None:
    assert one_problem(file, 'http.bind = ["a:0", "a:0"]').endswith('"a:0" is in it twice')


def test_a_server_without_doors_is_refused(file: Path) -> None:
    problem = one_problem(file, "http.bind = []\nrpc.bind = []\n")
    assert problem == "line 1: http.bind: is empty, and so is rpc.bind: nobody could reach the server"


# Who may call.


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "[2001:db8::1]", "example.org", "localhost.example"])
def test_beyond_loopback_there_have_to_be_credentials_and_tls(file: Path, host: str) -> None:
    bind = f'[http]\nbind = ["{host}:80"]\n'
    for text in (bind, f"{bind}insecure = true\n"):
        problem = one_problem(file, text)
        assert problem.startswith(f'line 2: http.bind: "{host}:80" can be reached by other machines, and no cred')
    problem = one_problem(file, bind + TOKEN)
    assert problem.startswith(f'line 2: http.bind: "{host}:80" can be reached by other machines, and tokens would')
    assert load_text(file, f"{bind}insecure = true\n{TOKEN}").http.insecure
    file.with_name("pem").write_text("PEM")
    tls = f'tls_cert = "{file.with_name("pem")}"\ntls_key = "{file.with_name("pem")}"\n'
    assert load_text(file, bind + tls + TOKEN).http.tls_cert == file.with_name("pem")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "LocalHost:1", "unix:s"])
def test_loopback_and_unix_sockets_need_no_credentials(file: Path, address: str) -> None:
    assert load_text(file, f'[http]\nbind = ["{address}"]\n').http.bind == (address,)


def test_an_address_of_the_default_is_placed_at_what_was_given(file: Path) -> None:
    problem = one_problem(file, "", {"IDEMACTOR_RPC__BIND": "0.0.0.0:1"})
    assert problem.startswith('environment IDEMACTOR_RPC__BIND: rpc.bind: "0.0.0.0:1" can be reached')


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f'sha256 = "{DIGEST[:-1]}"', "sha256: must be the token's SHA-256 in 64 hexadecimal digits"),
        (f'sha256 = "{DIGEST[:-1]}g"', "sha256: must be the token's SHA-256 in 64 hexadecimal digits"),
        ("sha256 = 1234", "sha256: must be the token's SHA-256 in 64 hexadecimal digits"),
        ('tenant = "Acme Inc"', "tenant: must be a lower-case letter followed by at most 62"),
        ('tenant = ""', "tenant: must be a lower-case letter followed by at most 62"),
        ('namespaces = ["trade"]', 'namespaces: there is no namespace "trade"; there are default'),
        ('namespaces = ["*", "default"]', 'namespaces: "*" is all of them and stands alone'),
        ('namespaces = ["default", "default"]', "namespaces: must be a list of namespaces, or"),
        ('namespaces = "*"', "namespaces: must be a list of namespaces, or"),
        ("namespaces = [1]", "namespaces: must be a list of namespaces, or"),
        ('role = "admin"', 'role: must be "caller" or "operator" or "metrics", not "admin"'),
    ],
)
def test_a_wrong_token_entry(file: Path, line: str, problem: str) -> None:
    setting = line.partition(" ")[0]
    lines = [line if given.startswith(f"{setting} ") else given for given in TOKEN.splitlines()]
    at = lines.index(line) + 1
    assert one_problem(file, "\n".join(lines)).startswith(f"line {at}: auth.tokens.gateway.{problem}")


@pytest.mark.parametrize("setting", ["sha256", "tenant", "namespaces", "role"])
def test_a_token_entry_is_complete(file: Path, setting: str) -> None:
    text = "\n".join(line for line in TOKEN.splitlines() if not line.startswith(f"{setting} "))
    assert one_problem(file, text).startswith(f"line 1: auth.tokens.gateway.{setting}: is missing; it must be ")


def test_a_token_for_metrics_names_no_namespaces(file: Path) -> None:
    text = TOKEN.replace('namespaces = ["*"]\n', "").replace("caller", "metrics")
    assert load_text(file, text).tokens[0].namespaces == ()


def test_a_token_in_the_place_of_its_digest_is_not_shown(file: Path) -> None:
    assert "hunter2" not in one_problem(file, TOKEN.replace(DIGEST, "hunter2"))


def test_two_entries_for_one_token(file: Path) -> None:
    problem = one_problem(file, TOKEN + TOKEN.replace("gateway", "other"))
    assert problem == "line 7: auth.tokens.other.sha256: is that of auth.tokens.gateway, too"


def test_the_digest_may_come_from_the_environment_even_where_it_is_all_digits(file: Path) -> None:
    config = load_text(file, TOKEN, environment={"IDEMACTOR_AUTH__TOKENS__GATEWAY__SHA256": "12" * 32})
    assert config.tokens[0].sha256 == b"\x12" * 32


# TLS.


@pytest.mark.parametrize(
    ("given", "needed"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("client_ca", "tls_cert")]
)
def test_tls_settings_need_one_another(file: Path, given: str, needed: str) -> None:
    file.with_name("pem").write_text("PEM")
    problem = one_problem(file, f'[rpc]\n{given} = "{file.with_name("pem")}"\n')
    assert problem == f"line 2: rpc.{given}: needs rpc.{needed} beside it"


def test_tls_files_have_to_be_readable(file: Path) -> None:
    missing = file.with_name("missing")
    problems = problems_of(file, f'[http]\ntls_cert = "{missing}"\ntls_key = "{file.parent}"\n')
    assert problems == [
        f'line 2: http.tls_cert: "{missing}" cannot be read: No such file or directory',
        f'line 3: http.tls_key: "{file.parent}" cannot be read: Is a directory',
    ]


# The sources themselves.


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        ("IDEMACTOR_SERVER__SHARD", "server.shard: no such setting; did you mean shards?"),
        ("IDEMACTOR_CONFIG", "no such setting; a name looks like IDEMACTOR_SERVER__DATA_DIR"),
        ("IDEMACTOR_", "no such setting; a name looks like IDEMACTOR_SERVER__DATA_DIR"),
        ("IDEMACTOR_SERVER__", "no such setting; a name looks like IDEMACTOR_SERVER__DATA_DIR"),
        ("IDEMACTOR_SERVER__SHARDS__X", "server.shards: must be an integer from 1 to 1024, not a table"),
        ("IDEMACTOR_SERVER__SHARDS", 'server.shards: must be an integer from 1 to 1024, not "many"'),
        ("IDEMACTOR_NAMESPACES__TRADE", "namespaces.trade: must be a table"),
    ],
)
def test_a_wrong_variable_is_named(file: Path, variable: str, problem: str) -> None:
    assert one_problem(file, "", {variable: "many"}) == f"environment {variable}: {problem}"


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^flag --shards: server\.shards: must be an integer from 1 to 1024"):
        load(None, flags={"server.shards": 0})


def test_all_problems_are_reported_in_the_order_of_the_lines(file: Path) -> None:
    text = """
        [namespaces.trade]
        ttl_ms = -1
        [http]
        bind = ["0.0.0.0:1"]
        [rpc]
        tls_key = "missing"



        nonsense = 1
        """
    problems = problems_of(file, text, {"IDEMACTOR_NONSENSE": "1"})
    assert [problem.partition(": ")[0] for problem in problems] == [
        "line 3",
        "line 5",
        "line 7",
        "line 7",
        "line 11",
        "environment IDEMACTOR_NONSENSE",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[server\n", "line 1: is not valid TOML: "),
        ("[server]\nshards = 1\nshards = 2\n", "line 3: is not valid TOML: "),
        ("[server]\n\nshards = \n", "line 3: is not valid TOML: "),
        ("[server]\ndata_dir = '''\n\n", "line 4: is not valid TOML: "),
        ("a = " + "[" * 100_000, "file: is nested too deeply"),
        ("a = " + "9" * 5_000, "file: is not valid TOML: "),
        ("#" * (FILE_BYTES_MAX + 1), f"file: is larger than {FILE_BYTES_MAX} bytes"),
    ],
    ids=["table", "twice", "no value", "unclosed", "nesting", "digits", "size"],
)
def test_a_file_that_is_no_toml(file: Path, text: str, problem: str) -> None:
    assert one_problem(file, text).startswith(problem)


def test_a_file_that_is_not_utf8(file: Path) -> None:
    file.write_bytes(b"[server]\n# \xe9\n")
    with pytest.raises(ConfigError, match=r"config\.toml:2: is not UTF-8 text"):
        load(file)


def test_a_byte_order_mark_is_called_by_its_name(file: Path) -> None:
    file.write_text("[server]\n", encoding="utf-8-sig")
    with pytest.raises(
        ConfigError, match=r"config\.toml:1: begins with a byte order mark; save it as UTF-8 without one"
    ):
        load(file)


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml: cannot be read: No such file or directory"):
        load(file)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(file.parent)
