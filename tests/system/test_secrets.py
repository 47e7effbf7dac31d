"""What nobody may read anywhere: secrets that are sent in every place that takes some, and all outputs searched.

And what is only said to the log, the metrics and other callers: nothing that breaks out of its line or its field.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.clients import HttpClient, Lost, RpcClient, RpcError, raw
from tests.system.process import Server, run_check
from tests.system.test_start import token_toml

MARK: Final = "Zx9secretQ7"
"""In everything that is a secret here."""
TOKEN: Final = f"{MARK}-token"
WRONG: Final = f"{MARK}-wrong"
SIGNING: Final = f"{MARK}-signing"
EVIL: Final = 'x\r\n{"level":"error","event":"forged"}\r\nSet-Cookie: a=b\x1b[2J'
"""What would be a line of the log, and a field of an answer, of its own."""
CONFIG: Final = (
    '[server]\nshards = 2\n[namespaces.default]\n[namespaces.trade]\n[log]\nlevel = "debug"\n'
    '[sources.github.verify]\nsecret_env = ["HOOK_SECRET"]\n'
    '[sources.mine]\nid = ["/id"]\nsecrets = ["/apiKey", "header:X-Api-Key"]\n'
    + token_toml("one", TOKEN, "operator")
    + token_toml("two", "plain-token", "operator", tenant="other")
)
PAYLOAD: Final = {"id": "order-1", "apiKey": f"{MARK}-key", "side": "BUY"}


def hook(body: dict[str, Any], *headers: tuple[str, str]) -> dict[str, Any]:
    pairs = [["Content-Type", "application/json"], *map(list, headers)]
    return {"method": "POST", "path": "/hook", "headers": pairs, "body": json.dumps(body)}


def send_secrets(server: Server) -> list[str]:
    """Everything that is answered to whom is not entitled to the secrets, or never asked for them."""
    told: list[str] = []

    def note(answer: Any) -> None:
        told.append(
            str(answer.headers) + answer.body.decode(errors="replace") if hasattr(answer, "body") else str(answer)
        )

    with HttpClient(server.http, token=TOKEN) as http:
        sent = hook(PAYLOAD, ("X-Api-Key", f"{MARK}-key"), ("Authorization", f"Bearer {MARK}"))
        for op in ("reserve", "key"):
            note(http.call(op, source="mine", request=sent))
        note(http.call("reserve", source="github", request=hook({"a": MARK}, ("X-GitHub-Delivery", "d"))))
        forged = ("X-Hub-Signature-256", "sha256=" + hashlib.sha256(SIGNING.encode()).hexdigest())
        note(http.call("accept", source="github", request=hook({"a": MARK}, ("X-GitHub-Delivery", "d"), forged)))
        note(http.call("reserve", key="paid", payload={"card": MARK}, request_id=f"{MARK}-request"))
        note(http.call("reserve", key="paid", payload={"card": f"{MARK}-other"}))
        note(http.call("reserve", key="paid"))
        note(http.call("reserve", key={"not": MARK}))
        note(http.call("reserve", key="k", lease_ms=MARK))
        note(
            http.send("POST", "/v1/default/reserve", f'{{"key":"{MARK}'.encode(), {"Content-Type": "application/json"})
        )
        for path in ("records", "incidents", "policy"):
            note(http.get(f"/v1/default/{path}"))
    for token in (WRONG, f"{TOKEN}x"):
        with HttpClient(server.http, token=token) as http:
            note(http.call("reserve", key="k"))
            note(http.get("/metrics"))
    with RpcClient(server.rpc) as rpc:
        for params in ({"token": WRONG}, {"token": MARK * 1_000}, {"token": [MARK]}, {"tokens": TOKEN}):
            told.append(refusal_of(rpc, "auth", params))
        told.append(refusal_of(rpc, "auth", {"token": TOKEN}))
        told.append(refusal_of(rpc, "reserve", {"namespace": "default", "key": "k", "payload": object_of(MARK)}))
    told.append(
        raw(server.http, f"GET /livez HTTP/1.1\r\nHost: x\r\nAuthorization: {MARK}\x00\r\n\r\n".encode()).decode()
    )
    told.append(raw(server.rpc, b"\x94\x00\x01\xa4auth\x91" + MARK.encode()).decode("latin-1"))
    with HttpClient(server.http, token="plain-token") as http:
        for path in ("/v1/default/records", "/v1/default/incidents", "/metrics", "/openapi.json", "/v1/shards"):
            note(http.get(path))
        note(http.call("get", key="paid"))
    return told


def object_of(text: str) -> dict[str, object]:
    return {"deep": {"deeper": text}, text: 1}


def refusal_of(rpc: RpcClient, method: str, params: dict[str, Any]) -> str:
    try:
        return str(rpc.request(method, params))
    except (RpcError, Lost) as error:
        return str(error)


def test_secrets_are_nowhere(home: Path) -> None:
    with Server(home, CONFIG, extra={"HOOK_SECRET": SIGNING}) as server:
        told = send_secrets(server)
        assert len(told) > 30
        for text in told:
            # A detail of a duplicated payload, a field's name, and the key of a source are no secrets; these are.
            assert MARK not in text, text
        metrics = HttpClient(server.http, token=TOKEN).get("/metrics").body.decode()
        assert MARK not in metrics
        assert MARK not in server.log
        assert MARK not in server.ready_line
        assert MARK not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert server.terminate() == 0
    assert MARK not in server.log
    checked = run_check(server.data_dir)
    assert MARK not in checked.stdout + checked.stderr
    # On disk a token and a payload are digests. What a caller named itself stands there as it was named.
    stored = b"".join(path.read_bytes() for path in server.data_dir.rglob("*") if path.is_file())
    for secret in (TOKEN, WRONG, SIGNING, f"{MARK}-key", f"{MARK}-other"):
        assert secret.encode() not in stored


@pytest.mark.parametrize("payloads", [False, True])
def test_nothing_breaks_out_of_its_line(home: Path, payloads: bool) -> None:
    shown = f'[log]\nlevel = "debug"\npayloads = {str(payloads).lower()}\n'
    config = f'[namespaces.default]\n{shown}[sources.mine]\nid = ["/id"]\n'
    with Server(home, config) as server:
        with HttpClient(server.http) as http, RpcClient(server.rpc) as rpc:
            http.call("reserve", source="mine", request=hook({"id": "1", "x": EVIL}, ("X-Evil", "a\tb")))
            http.call("reserve", source="mine", request=hook({"id": EVIL}))
            held = http.call("reserve", key="k", holder="h").members["token"]
            http.call("doubt", key="k", token=held, reason=EVIL)
            http.call("reserve", key="k2", holder=EVIL)
            http.call("reserve", key=EVIL)
            refusal_of(rpc, EVIL, {})
            refusal_of(rpc, "reserve", {"namespace": EVIL, "key": "k"})
            refusal_of(rpc, "reserve", {"namespace": "default", "key": "k3", EVIL: 1})
            http.send("GET", "/%0d%0aX-Evil:%201", None, {})
            http.get("/v1/default/records?cursor=%0d%0aSet-Cookie:a=b")
            for name, value in (("X-A\r\nSet-Cookie: a", "b"), ("X-A", "b\r\nSet-Cookie: a=b"), ("X-A", "b\nx")):
                outcome = {"status": 200, "headers": [[name, value]], "body": "x"}
                assert http.call("accept", key="out", outcome=outcome).status == 400
            answer = raw(server.http, b"GET /x%0d%0aSet-Cookie:a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert b"\nset-cookie" not in answer.lower()
            metrics = http.get("/metrics").body.decode()
        assert server.terminate() == 0
    lines = server.log.splitlines()
    assert len(lines) > 3
    for line in lines:
        told = json.loads(line)
        assert told["event"] != "forged"
        assert line.isascii()
        assert line.isprintable()
    for line in metrics.splitlines():
        assert line.startswith(("#", "idemactor_", "process_", "python_")), line
