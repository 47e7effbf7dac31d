"""``[namespaces.NAME.dispatch]``: what is read, and that a mistake is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from idemactor.config import ServerConfig, load
from idemactor.core.policy import DispatchPolicy, OnFailure
from idemactor.dispatch.destination import Destination, Endpoint, Retry, StatusPage
from idemactor.errors import ConfigError
from idemactor.gateway.proxy.routes import Origin, SuccessRule

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TABLE = "[namespaces.orders.dispatch]\n"
URL = TABLE + 'url = "http://127.0.0.1:9000/orders"\n'
"""What is added is line 3."""
STATUS = 'status_url = "http://127.0.0.1:9000/orders/{operation_id}"\n'

WHOLE = """
[namespaces.orders.dispatch]
url = "https://shop.test/orders?x=1"
timeout_ms = 3000
secret_env = ["SECRET", "FORMER"]
concurrency = 4
downstream_dedups = true
status_url = "http://status.test:8080/o?id={operation_id}"
status_committed = [200, 201]
status_released = [404]
status_after_ms = 30000
retry = { first_ms = 100, factor = 3, longest_ms = 5000, horizon_ms = 60000 }
success = { pointer = "/success", equals = true }
definite_failure = [422]
not_executed = [429]
on_failure = "release"
intent_max_bytes = 1000
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def read(file: Path, text: str) -> ServerConfig:
    file.write_text(text)
    environment = {"SECRET": SECRET, "FORMER": SECRET, "BAD": "hunter2!", "BLANK": " "}
    return load(file, environment=environment)


def problem(file: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(file, text)
    [line] = str(caught.value).splitlines()
    return line.removeprefix(f"{file}:")


def test_without_a_table_services_fetch_their_work(file: Path) -> None:
    config = read(file, "[namespaces.orders]\n")
    assert config.destinations == {}
    assert config.namespaces["orders"].dispatch == DispatchPolicy()
    assert read(file, "").destinations == {}


def test_a_destination_has_defaults(file: Path) -> None:
    config = read(file, URL)
    assert config.destinations == {"orders": Destination(Endpoint(Origin("http", "127.0.0.1", 9000), "/orders"))}
    assert config.namespaces["orders"].dispatch == DispatchPolicy(pushed=True, recognised=False)


def test_every_setting_is_read(file: Path) -> None:
    config = read(file, WHOLE)
    [destination] = config.destinations.values()
    assert destination == Destination(
        Endpoint(Origin("https", "shop.test", 443), "/orders?x=1"),
        timeout_ms=3_000,
        secrets=destination.secrets,
        concurrency=4,
        downstream_dedups=True,
        status=StatusPage(
            Endpoint(Origin("http", "status.test", 8080), "/o?id={operation_id}"),
            frozenset({200, 201}),
            frozenset({404}),
            30_000,
        ),
        retry=Retry(100, 3.0, 5_000, 60_000),
        success=SuccessRule("/success", True),
        definite_failure=frozenset({422}),
        not_executed=frozenset({429}),
        on_failure=OnFailure.RELEASE,
    )
    assert len(destination.secrets) == 2
    assert len(destination.secrets[0]) == 24
    assert config.namespaces["orders"].dispatch == DispatchPolicy(True, True, 60_000, 1_000, OnFailure.RELEASE)
    assert "MfKQ" not in repr(config)
    assert repr(destination.secrets[0]) not in repr(config)


def test_a_namespace_whose_work_is_fetched_has_settings_too(file: Path) -> None:
    text = TABLE + 'on_failure = "release"\nintent_max_bytes = 7\nretry = { horizon_ms = 5 }\n'
    config = read(file, text)
    assert config.destinations == {}
    assert config.namespaces["orders"].dispatch == DispatchPolicy(False, True, 5, 7, OnFailure.RELEASE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('url = "unix:/x"', "2: namespaces.orders.dispatch.url: must be a URL: is no URL"),
        ('url = "ftp://x/"', "2: namespaces.orders.dispatch.url: must be a URL: is no URL"),
        ('url = "http://u:p@x/"', "2: namespaces.orders.dispatch.url: must be a URL: has a user"),
        ('url = "http://x/a#b"', "2: namespaces.orders.dispatch.url: must be a URL: has a fragment"),
        ('url = "http://x/a b"', "2: namespaces.orders.dispatch.url: must be a URL: has white space"),
        ('url = "http://x:0/"', "2: namespaces.orders.dispatch.url: must be a URL: has no valid host and port"),
        ('url = "http://[::1/"', "2: namespaces.orders.dispatch.url: must be a URL: "),
        ('url = "http://x/{operation_id}"', "2: namespaces.orders.dispatch.url: must be a URL: has braces"),
        ("url = 5", "2: namespaces.orders.dispatch.url: must be a URL, not 5"),
    ],
)
def test_an_url_that_is_none(file: Path, text: str, said: str) -> None:
    assert problem(file, TABLE + text).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timeout_ms = 0", "3: namespaces.orders.dispatch.timeout_ms: must be an integer from 1 to 3600000, not 0"),
        ("concurrency = 0", "3: namespaces.orders.dispatch.concurrency: must be an integer from 1 to 1000, not 0"),
        ('downstream_dedups = "yes"', "3: namespaces.orders.dispatch.downstream_dedups: must be true or false"),
        ('secret_env = "ABSENT"', "3: namespaces.orders.dispatch.secret_env: the environment variable ABSENT is not"),
        ('secret_env = "BAD"', "3: namespaces.orders.dispatch.secret_env: the environment variable BAD: the secret is"),
        ('secret_env = "BLANK"', "3: namespaces.orders.dispatch.secret_env: the environment variable BLANK: the"),
        ('status_url = "http://x/"', "3: namespaces.orders.dispatch.status_url: must be a URL: has no {operation_id}"),
        ('status_url = "http://{operation_id}/"', "3: namespaces.orders.dispatch.status_url: must be a URL: has no"),
        ('status_url = "http://x/{operation_id}/{y}"', "3: namespaces.orders.dispatch.status_url: must be a URL: has"),
        ("status_released = [404]", "3: namespaces.orders.dispatch.status_released: has no effect without status_url"),
        ("status_after_ms = 5", "3: namespaces.orders.dispatch.status_after_ms: has no effect without status_url"),
        (STATUS + "status_released = [200]", "4: namespaces.orders.dispatch.status_released: 200 is in status_com"),
        (STATUS + "status_released = [100]", "4: namespaces.orders.dispatch.status_released: must be a list of stat"),
        ("not_executed = [422]", "3: namespaces.orders.dispatch.not_executed: 422 is in definite_failure and in not"),
        ("definite_failure = [503]", "3: namespaces.orders.dispatch.definite_failure: 503 is in definite_failure an"),
        ("not_executed = [200]", "3: namespaces.orders.dispatch.not_executed: must be a list of statuses from 300"),
        ('on_failure = "explode"', '3: namespaces.orders.dispatch.on_failure: must be "failed" or "release"'),
        ("intent_max_bytes = 9999999", "3: namespaces.orders.dispatch.intent_max_bytes: must be an integer from 1"),
        ("retry = 5", "3: namespaces.orders.dispatch.retry: must be a table"),
        ("retry = { factor = 0.5 }", "3: namespaces.orders.dispatch.retry.factor: must be a number from 1 to 10"),
        ("retry = { factor = nan }", "3: namespaces.orders.dispatch.retry.factor: must be a number from 1 to 10"),
        ("retry = { factor = true }", "3: namespaces.orders.dispatch.retry.factor: must be a number from 1 to 10"),
        ("retry = { first_ms = 70000 }", "3: namespaces.orders.dispatch.retry.first_ms: first_ms 70000 is more than"),
        ("retry = { longest_ms = 100 }", "3: namespaces.orders.dispatch.retry.longest_ms: first_ms 200 is more than"),
        ("retry = { horizon = 1 }", "3: namespaces.orders.dispatch.retry.horizon: no such setting; did you mean hor"),
        ("timeout = 5", "3: namespaces.orders.dispatch.timeout: no such setting; did you mean timeout_ms?"),
        ("success = { pointer = 'x', equals = 1 }", "3: namespaces.orders.dispatch.success.pointer: must be a JSON P"),
    ],
)
def test_what_is_refused_is_named_with_its_line(file: Path, text: str, said: str) -> None:
    found = problem(file, URL + text)
    assert found.startswith(said)
    assert "hunter2" not in found


@pytest.mark.parametrize(
    "text",
    [
        *("timeout_ms = 5", 'secret_env = "SECRET"', "concurrency = 2", "downstream_dedups = true"),
        *("definite_failure = [400]", "not_executed = [429]", 'success = { pointer = "/x", equals = 1 }'),
        *('status_url = "http://x/{operation_id}"', "status_after_ms = 5", "retry = { first_ms = 5 }"),
    ],
)
def test_what_nobody_reads_without_a_url_is_refused(file: Path, text: str) -> None:
    assert "has no effect without url" in problem(file, TABLE + text)
