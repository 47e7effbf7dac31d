"""A real server, told by its configuration: what it stores is encrypted, and what operators do is written down."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

import pytest

from tests.system.clients import RpcError
from tests.system.process import Server, StartRefused

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
