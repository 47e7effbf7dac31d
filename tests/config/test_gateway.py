"""``[gateway]`` and its routes: what is read, and that a mistake is named with its line."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from idemactor.config import ServerConfig, load
from idemactor.config.lines import locate
from idemactor.errors import ConfigError
from idemactor.gateway.proxy.limits import ProxyLimits
from idemactor.gateway.proxy.routes import OrderIdForm, Origin, Route, RouteAuth, SuccessRule
from tests.config.test_config import TOKEN

GATEWAY = '[gateway]\nbind = ["127.0.0.1:0"]\n'
ROUTE = '[[gateway.routes]]\nprefix = "/orders"\nupstream = "http://127.0.0.1:9000"\nnamespace = "default"\n'
"""Line 3 to 6 behind ``GATEWAY``."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def read(file: Path, text: str, environment: dict[str, str] | None = None) -> ServerConfig:
    file.write_text(text)
    return load(file, environment=environment)


def problem(file: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(file, text)
    [line] = str(caught.value).splitlines()
    return line.removeprefix(f"{file}:")


def test_there_is_no_gateway_unless_it_is_configured(file: Path) -> None:
    gateway = read(file, "").gateway
    assert (gateway.door.bind, gateway.routes, gateway.trusted) == ((), (), ())


def test_a_route_has_defaults(file: Path) -> None:
    config = read(file, GATEWAY + ROUTE)
    assert config.gateway.door.bind == ("127.0.0.1:0",)
    assert config.gateway.routes == (Route("/orders", Origin("http", "127.0.0.1", 9000), "default"),)


def test_the_guide_shows_the_defaults() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "proxy.md").read_text()
    [block] = [text for text in re.findall(r"```toml\n(.*?)```", guide, re.DOTALL) if "body_bytes_max" in text]
    gateway = tomllib.loads(block)["gateway"]
    said = gateway["routes"][0]
    plain = ("source", "require_key", "store_failures", "preserve_host")
    times = ("wait_ms", "timeout_ms", "first_byte_ms", "connect_ms")
    lists = ("methods", "definite_failure", "not_executed")
    default = asdict(Route("/", Origin("http", "", 0), "default"))
    assert {name: said[name] for name in plain + times} == {name: default[name] for name in plain + times}
    assert {name: frozenset(said[name]) for name in lists} == {name: default[name] for name in lists}
    limits = [name for name in gateway if name in asdict(ProxyLimits())]
    assert len(limits) == 4
    assert {name: gateway[name] for name in limits} == {name: asdict(ProxyLimits())[name] for name in limits}


def test_every_setting_of_a_route_is_read(file: Path) -> None:
    more = """
source = "tradingview"
methods = ["PUT"]
require_key = false
wait_ms = 5
timeout_ms = 3000
first_byte_ms = 2000
connect_ms = 1000
success = { pointer = "/state", equals = "filled", fails = ["rejected", 0, false] }
definite_failure = [400]
not_executed = [503]
store_failures = true
operation_header = "X-Order"
operation_form = "binance"
operation_prefix = "x-"
replay_headers = ["X-Rate"]
auth = "open"
auth_header = "X-Token"
tenant = "acme"
preserve_host = false
"""
    gateway = """[gateway]
bind = ["127.0.0.1:0", "unix:gateway.sock"]
trusted = ["10.0.0.0/8", "unix"]
header_bytes_max = 2048
body_bytes_max = 4096
concurrent_max = 3
upstream_idle_ms = 100
"""
    config = read(file, gateway + ROUTE + more)
    assert config.gateway.trusted == ("10.0.0.0/8", "unix")
    limits = config.gateway.limits
    assert (limits.header_bytes_max, limits.body_bytes_max) == (2048, 4096)
    assert (limits.concurrent_max, limits.upstream_idle_ms) == (3, 100)
    assert config.gateway.routes == (
        Route(
            prefix="/orders",
            upstream=Origin("http", "127.0.0.1", 9000),
            namespace="default",
            source="tradingview",
            methods=frozenset({"PUT"}),
            require_key=False,
            wait_ms=5,
            timeout_ms=3000,
            first_byte_ms=2000,
            connect_ms=1000,
            success=SuccessRule("/state", "filled", ("rejected", 0, False)),
            definite_failure=frozenset({400}),
            not_executed=frozenset({503}),
            store_failures=True,
            operation_header="X-Order",
            operation_form=OrderIdForm.BINANCE,
            operation_prefix="x-",
            replay_headers=frozenset({"x-rate"}),
            auth=RouteAuth.OPEN,
            auth_header="x-token",
            tenant="acme",
            preserve_host=False,
        ),
    )


def test_with_credentials_a_route_asks_for_them_unless_it_names_a_tenant(file: Path) -> None:
    text = GATEWAY + ROUTE + ROUTE.replace("/orders", "/open") + 'tenant = "acme"\n' + TOKEN
    assert [route.auth for route in read(file, text).gateway.routes] == [RouteAuth.BEARER, RouteAuth.OPEN]


def test_the_environment_reaches_a_route_by_its_number(file: Path) -> None:
    environment = {"IDEMACTOR_GATEWAY__ROUTES__1__UPSTREAM": "https://b.example"}
    config = read(file, GATEWAY + ROUTE + ROUTE.replace("/orders", "/b"), environment)
    assert [route.upstream.host for route in config.gateway.routes] == ["127.0.0.1", "b.example"]


SECOND = ROUTE.replace("/orders", "/other")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GATEWAY, "2: gateway.bind: has no routes"),
        (ROUTE, "1: gateway: has routes and listens nowhere"),
        (GATEWAY + 'routes = "x"\n', "3: gateway.routes: must be a list of tables"),
        (GATEWAY + "[gateway.routes]\nprefix = 1\n", "3: gateway.routes: must be a list of tables"),
        (GATEWAY + ROUTE + "x = 1\n", "7: gateway.routes.0.x: no such setting"),
        (GATEWAY + ROUTE + SECOND + "wait_ms = -1\n", "11: gateway.routes.1.wait_ms: must be an integer"),
        (GATEWAY + "routes = []\n", "3: gateway.routes: must be a list of tables"),
        (GATEWAY + ROUTE + "[gateway.routes.success]\nequals = 1\n", "7: gateway.routes.0.success.pointer: is missing"),
        (
            GATEWAY + ROUTE + 'success = { pointer = "x", equals = 1 }\n',
            "7: gateway.routes.0.success.pointer: must be a JSON",
        ),
        (GATEWAY + ROUTE + "success = true\n", "7: gateway.routes.0.success: must be a table"),
        (GATEWAY + ROUTE + ROUTE, '8: gateway.routes.1.prefix: "/orders" is that of gateway.routes.0, too'),
        (GATEWAY + ROUTE + ROUTE.replace("/orders", "/orders/"), "8: gateway.routes.1.prefix: "),
        (GATEWAY + ROUTE.replace('"/orders"', '"orders"'), "4: gateway.routes.0.prefix: must be a path"),
        (GATEWAY + ROUTE.replace('"/orders"', '"/a/../b"'), "4: gateway.routes.0.prefix: must be a path"),
        (GATEWAY + ROUTE.replace('"/orders"', '"/a./b"'), "4: gateway.routes.0.prefix: must be a path"),
        (GATEWAY + ROUTE.replace("http:", "ftp:"), "5: gateway.routes.0.upstream: must be an upstream: is no upstream"),
        (GATEWAY + ROUTE.replace(":9000", ":9000/x"), "5: gateway.routes.0.upstream: must be an upstream: has more"),
        (GATEWAY + ROUTE.replace('"default"', '"none"'), "6: gateway.routes.0.namespace: there is no namespace"),
        (GATEWAY + ROUTE + 'source = "none"\n', "7: gateway.routes.0.source: there is no source"),
        (GATEWAY + ROUTE + "not_executed = [422]\n", "7: gateway.routes.0.not_executed: 422 is in definite_failure"),
        (GATEWAY + ROUTE + "definite_failure = [200]\n", "7: gateway.routes.0.definite_failure: must be a list"),
        (GATEWAY + ROUTE + 'methods = ["post"]\n', "7: gateway.routes.0.methods: must be a list of methods"),
        (GATEWAY + ROUTE + "first_byte_ms = 40000\n", "7: gateway.routes.0.first_byte_ms: is more than timeout_ms"),
        (GATEWAY + ROUTE + 'replay_headers = ["Set-Cookie"]\n', "7: gateway.routes.0.replay_headers: must be"),
        (
            GATEWAY + ROUTE + 'operation_form = "bybit"\noperation_prefix = "x."\n',
            "8: gateway.routes.0.operation_prefix: does not fit",
        ),
        (GATEWAY + ROUTE + 'auth = "bearer"\ntenant = "acme"\n' + TOKEN, "8: gateway.routes.0.tenant: says whose keys"),
        (GATEWAY + ROUTE + 'auth = "bearer"\n', "7: gateway.routes.0.auth: asks for tokens, and there are none"),
        (GATEWAY + ROUTE + "methods = []\n", "7: gateway.routes.0.methods: is empty"),
        (GATEWAY + ROUTE + 'methods = ["CONNECT"]\n', "7: gateway.routes.0.methods: must be a list of methods"),
        (
            GATEWAY + ROUTE + 'success = { pointer = "/a", equals = nan }\n',
            "7: gateway.routes.0.success.equals: must be true, false, a number or text: JSON has no such number",
        ),
        (
            GATEWAY + ROUTE + 'success = { pointer = "/a", equals = 1, fails = [-inf] }\n',
            "7: gateway.routes.0.success.fails: must be a list of values: JSON has no such number",
        ),
        (
            GATEWAY + ROUTE + 'success = { pointer = "/a", equals = 1, fails = ["x", 1.0] }\n',
            "7: gateway.routes.0.success.fails: contains what equals says",
        ),
        (
            GATEWAY + ROUTE + 'operation_header = "X-A"\nauth_header = "x-a"\n',
            "7: gateway.routes.0.operation_header: is auth_header, too",
        ),
        ('[gateway]\nbind = ["x"]\n' + ROUTE, "2: gateway.bind: must be a list of addresses"),
        ("[gateway]\nbind = []\n" + ROUTE, "1: gateway: has routes and listens nowhere"),
        (GATEWAY + 'trusted = ["x"]\n' + ROUTE, "3: gateway.trusted: must be a list of addresses"),
        (
            GATEWAY + ROUTE + "timeout_ms = 60000\n[namespaces.default]\nlease_total_max_ms = 1000\nlease_ms = 1000\n",
            "7: gateway.routes.0.timeout_ms: 60000 and connect_ms 5000 together are more than the lease",
        ),
        (
            GATEWAY
            + ROUTE
            + "timeout_ms = 900\nconnect_ms = 101\n"
            + "[namespaces.default]\nlease_total_max_ms = 1000\nlease_ms = 1000\n",
            "7: gateway.routes.0.timeout_ms: 900 and connect_ms 101 together are more than",
        ),
        (GATEWAY.replace("127.0.0.1:0", "0.0.0.0:1") + ROUTE, "3: gateway.routes.0: can be used from other machines"),
    ],
)
def test_a_mistake_is_named_with_its_line(file: Path, text: str, said: str) -> None:
    assert problem(file, text).startswith(said)


NOT_OF_ITS_OWN = [
    *(
        "Content-Length",
        "content_length",
        "Content-Type",
        "Transfer-Encoding",
        "Transfer_Encoding",
        "Host",
        "Connection",
    ),
    *(
        "TE",
        "Trailer",
        "Upgrade",
        "Keep-Alive",
        "Proxy-Authorization",
        "Expect",
        "Idempotency-Key",
        "Idempotency-Attempt",
    ),
    *("Idempotency-Takeover", "Idempotency-Unprotected", "Idempotent-Replayed", "X-Forwarded-For", "X-Forwarded-Proto"),
    *("X_Forwarded_Host", "content.length", "Forwarded", "X-Real-IP", "Cookie", "Accept-Encoding", "Date"),
]


@pytest.mark.parametrize("name", NOT_OF_ITS_OWN)
@pytest.mark.parametrize("setting", ["operation_header", "auth_header"])
def test_a_field_that_means_something_else_is_not_taken(file: Path, setting: str, name: str) -> None:
    said = problem(file, GATEWAY + ROUTE + f'{setting} = "{name}"\n')
    assert said.startswith(
        f"7: gateway.routes.0.{setting}: must be the name of a header field of its own: it has another"
    )


def test_a_token_comes_in_authorization_and_nothing_else_leaves_in_it(file: Path) -> None:
    assert read(file, GATEWAY + ROUTE + 'auth_header = "Authorization"\n').gateway.routes[0].auth_header
    said = problem(file, GATEWAY + ROUTE + 'operation_header = "Authorization"\nauth_header = "X-Token"\n')
    assert said.startswith("7: gateway.routes.0.operation_header: must be")


def test_what_a_sender_says_of_itself_may_be_replaced(file: Path) -> None:
    for name in ("Idempotency-Operation-Id", "X-Client-Order-Id", "X-Idemactor-Operation", "X-Request-Id"):
        assert read(file, GATEWAY + ROUTE + f'operation_header = "{name}"\n').gateway.routes[0].operation_header == name


def test_whoever_signs_may_come_from_elsewhere(file: Path) -> None:
    source = (
        '[sources.signed]\nderive = ["body"]\nverify = { scheme = "github", secret_env = "S" }\nretry_horizon_ms = 1\n'
    )
    text = GATEWAY.replace("127.0.0.1:0", "0.0.0.0:0") + ROUTE + 'source = "signed"\n' + source
    assert read(file, text, {"S": "secret"}).gateway.routes[0].source == "signed"


def test_to_ask_for_tokens_that_do_not_exist_guards_nothing(file: Path) -> None:
    text = GATEWAY.replace("127.0.0.1:0", "0.0.0.0:1") + ROUTE + 'auth = "bearer"\n'
    with pytest.raises(ConfigError) as caught:
        read(file, text)
    said = str(caught.value)
    assert "7: gateway.routes.0.auth: asks for tokens, and there are none" in said
    assert "3: gateway.routes.0: can be used from other machines" in said
    guarded = read(file, text.replace("[gateway]", "[gateway]\ninsecure = true") + TOKEN)
    assert guarded.gateway.routes[0].auth is RouteAuth.BEARER


def test_tables_of_an_array_have_a_number() -> None:
    lines = locate(
        "[[a.b]]\nx = 1\n[a.b.c]\ny = 1\n[[a.b]]\nx = 2\n[[a.b.d]]\nz = [{ q = 1 }, { q = 2 }]\n[e]\nf = 1\n"
    )
    assert lines[("a", "b", "0", "x")] == 2
    assert lines[("a", "b", "0", "c", "y")] == 4
    assert lines[("a", "b", "1", "x")] == 6
    assert lines[("a", "b", "1", "d", "0", "z", "1", "q")] == 8
    assert lines[("e", "f")] == 10
