"""A real server, told by its configuration: what it stores is encrypted, and what operators do is written down."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path
from typing import Final

import pytest

from tests.system.clients import RpcError
from tests.system.operator_tools import tool, worked
from tests.system.process import Server, StartRefused, assert_clean, eventually

KEYS: Final = {"STORE_KEYS": base64.b64encode(b"k" * 32).decode()}
OTHER: Final = {"STORE_KEYS": base64.b64encode(b"o" * 32).decode()}
SECRET: Final = "the card number is 4111"


def config(home: Path, workers: int) -> str:
    lines = ["[server]", f"workers = {workers}", 'encryption_key_env = "STORE_KEYS"', "[log]"]
    return "\n".join([*lines, f'audit_file = "{home}/audit.jsonl"', "[namespaces.default]"])


def holding(directory: Path) -> list[str]:
    files = (file for file in directory.iterdir() if file.is_file())
    return [file.name for file in files if SECRET.encode() in file.read_bytes()]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_it_stores_is_encrypted_and_comes_back_for_its_key_alone(tmp_path: Path, workers: int) -> None:
    text = config(tmp_path, workers)
    with Server(tmp_path, text, extra=KEYS) as server, server.http_client() as client:
        for number in range(8):
            client.call("accept", key=f"k{number}", outcome={"status": 200, "body": SECRET})
        assert holding(server.data_dir) == []
        server.kill()
    assert holding(server.data_dir) == []
    with pytest.raises(StartRefused, match="encrypted"):
        Server(tmp_path, text, extra=OTHER).start()
    with pytest.raises(StartRefused, match="encrypted"):
        Server(tmp_path, text.replace('encryption_key_env = "STORE_KEYS"', "")).start()
    with Server(tmp_path, text, extra=KEYS) as server, server.http_client() as client:
        for number in range(8):
            answer = client.call("reserve", key=f"k{number}").members
            assert answer["outcome"]["body"] == SECRET
        server.terminate()
    assert holding(server.data_dir) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_operator_did_is_written_down(tmp_path: Path, workers: int) -> None:
    with Server(tmp_path, config(tmp_path, workers), extra=KEYS) as server, server.http_client() as client:
        held = client.call("reserve", key="held").members
        client.call("doubt", key="held", token=held["token"])
        client.call(
            "resolve", key="held", token=held["token"], verdict="committed", outcome={"status": 200, "body": SECRET}
        )
        client.call("forget", key="held")
        with server.rpc_client() as rpc, pytest.raises(RpcError):
            rpc.call("forget", key="held")
    text = (tmp_path / "audit.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["op"], line["key"], line["who"]) for line in lines] == [
        ("resolve", "held", "anonymous"),
        ("forget", "held", "anonymous"),
        ("forget", "held", "anonymous"),
    ]
    assert [line["result"] for line in lines] == ["committed", "forgotten", "IDEMPOTENCY_UNKNOWN_KEY"]
    assert SECRET not in text


def test_the_tools_take_the_key_from_the_configuration(tmp_path: Path) -> None:
    """Of a running server, whose journal has what the files have not: encrypted everywhere but in an export."""
    keys = tmp_path / "keys"
    keys.write_text(KEYS["STORE_KEYS"])
    text = f'[server]\nencryption_key_file = "{keys}"\n[namespaces.default]\n'
    with Server(tmp_path, text) as server, server.http_client() as client:
        for number in range(8):
            client.call("accept", key=f"k{number}", outcome={"status": 200, "body": SECRET})
        config = ("--config", server.config_path)
        worked("backup", tmp_path / "backup", "--data-dir", server.data_dir, *config)
        assert holding(tmp_path / "backup") == []
        assert server.terminate() == 0
    worked("restore", tmp_path / "backup", tmp_path / "restored")
    worked("reshard", tmp_path / "restored", "--to", 3, *config)
    refusal = tool("export", tmp_path / "restored")
    assert (refusal.code, SECRET in refusal.out) == (2, False)
    assert "no key is configured" in refusal.err
    worked("export", tmp_path / "restored", "--output", tmp_path / "all.jsonl", *config)
    assert (tmp_path / "all.jsonl").read_text().count(SECRET) == 8
    worked("import", tmp_path / "new", tmp_path / "all.jsonl", *config)
    for name in ("restored", "new"):
        assert_clean(tmp_path / name)
        assert [each for home in (tmp_path / name).rglob("files-*") for each in holding(home)] == []
        with Server(tmp_path, text, data_dir=tmp_path / name) as again, again.http_client() as client:
            assert client.call("reserve", key="k3").members["outcome"]["body"] == SECRET


@pytest.mark.parametrize("workers", [1, 2])
def test_that_tokens_were_read_anew_is_written_down(tmp_path: Path, workers: int) -> None:
    with Server(tmp_path, config(tmp_path, workers), extra=KEYS) as server:
        audit = tmp_path / "audit.jsonl"
        for written, lines in ((server.config_path.read_text(), 1), ("[server", 2)):
            server.config_path.write_text(written)
            server.signal(signal.SIGHUP)
            eventually(lambda lines=lines: len(audit.read_text().splitlines()) == lines)  # type: ignore[misc]
    told = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["who"], line["op"], line["result"]) for line in told] == [
        ("signal", "reload_tokens", "replaced"),
        ("signal", "reload_tokens", "kept"),
    ]
