"""Settings of how a server is run: stopping, hanging, telemetry, and sockets that are there already."""

from __future__ import annotations

from pathlib import Path

import pytest

from idemactor.config import load
from idemactor.config.model import ServerSection, TelemetrySection
from idemactor.errors import ConfigError


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


def test_what_is_left_out_has_its_default() -> None:
    config = load(None)
    assert (config.server.drain_ms, config.server.hang_ms) == (30_000, 30_000)
    assert config.telemetry == TelemetrySection(None, "idemactor", 100, 60_000)


def test_everything_said(tmp_path: Path) -> None:
    text = """
        [server]
        drain_ms = 5000
        hang_ms = 3000
        [telemetry]
        endpoint = "https://collector.example:4318/otlp"
        service_name = "orders"
        sample_percent = 0
        interval_ms = 100
    """
    config = load(written(tmp_path, text))
    assert config.server == ServerSection(drain_ms=5_000, hang_ms=3_000)
    assert config.telemetry == TelemetrySection("https://collector.example:4318/otlp", "orders", 0, 100)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\ndrain_ms = 99", "server.drain_ms: must be an integer from 100 to 3600000"),
        ("[server]\nhang_ms = 2999", "server.hang_ms: must be an integer from 3000 to 3600000"),
        ('[telemetry]\nendpoint = "collector:4318"', "telemetry.endpoint: must be"),
        ('[telemetry]\nendpoint = "http://user:word@collector"', "telemetry.endpoint: must be"),
        ('[telemetry]\nendpoint = "http://collector/?token=x"', "telemetry.endpoint: must be"),
        ('[telemetry]\nservice_name = " "', "telemetry.service_name: must be a text"),
        ("[telemetry]\nsample_percent = 101", "telemetry.sample_percent: must be an integer from 0 to 100"),
        ("[telemetry]\ninterval_ms = 1", "telemetry.interval_ms: must be"),
        ('[telemetry]\nendpiont = "http://a"', "telemetry.endpiont: no such setting; did you mean endpoint?"),
    ],
)
def test_what_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path, text))
    assert words in str(error.value)


def test_sockets_that_are_there_win_over_everything_for_their_door(tmp_path: Path) -> None:
    path = written(tmp_path, '[http]\nbind = ["127.0.0.1:1"]\n[rpc]\nbind = ["127.0.0.1:2"]')
    config = load(path, flags={"http.bind": ("127.0.0.1:3",)}, inherited={"http.bind": ("unix:/run/a", "[::1]:4")})
    assert config.http.bind == ("unix:/run/a", "[::1]:4")
    assert config.rpc.bind == ("127.0.0.1:2",)


def test_sockets_that_are_there_obey_the_rules() -> None:
    with pytest.raises(ConfigError, match=r"socket activation: rpc\.bind: .*no credentials"):
        load(None, inherited={"rpc.bind": ("0.0.0.0:8788",)})
