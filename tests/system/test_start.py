"""Starting, stopping, and what a machine can be short of: in words, with the right exit code, and never a traceback."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import msgpack
import pytest

from idemactor.storage.sqlite_wal import FRAME_BYTES
from idemactor.storage.wal_frames import HEADER_BYTES, frames_in
from tests.system.clients import Answer, HttpClient, Lost, Members, RpcClient, RpcError, connect, frame
from tests.system.conftest import TWO_NAMESPACES
from tests.system.disks import Disk, LimitedDisk, read_only, small_disk
from tests.system.process import (
    Server,
    StartRefused,
    assert_calm,
    assert_clean,
    environment,
    eventually,
    refused,
    run_check,
)
from tests.system.skewed_server import CLOCK_AHEAD_MS

EXIT_USAGE: Final = 2
PEM: Final = Path(__file__).parent / "http_hostile"
CERT: Final = PEM / "test_only_cert.pem"
KEY: Final = PEM / "test_only_key.pem"
HOUR_MS: Final = 3_600_000
REPOSITORY: Final = Path(__file__).resolve().parents[2]


def assert_refused(server: Server, *words: str) -> StartRefused:
    """It says what is wrong in one line a mistake, and ends with the exit code for what the user can put right."""
    refusal = refused(server)
    assert refusal.code == EXIT_USAGE, refusal
    lines = refusal.said.strip().splitlines()
    assert all(line.startswith(("idemactor: ", "{")) for line in lines), lines
    for word in words:
        assert word in refusal.said
    return refusal


# ------------------------------------------------------------------------------------------------------- the directory


def test_data_directory_in_use(home: Path) -> None:
    with Server(home) as first:
        (home / "two").mkdir()
        second = Server(home / "two", data_dir=first.data_dir)
        assert_refused(second, "in use", str(first.pid), "stop it first")
        with first.http_client() as client:
            assert client.call("reserve", key="k").status == 201
        # A look from outside is refused as well, while somebody owns it.
        assert run_check(first.data_dir).returncode == EXIT_USAGE
        first.kill()
        # A dead owner's lock is no lock.
        with second.start(), second.http_client() as client:
            assert client.call("reserve", key="k").members["result"] == "in_flight"


def test_two_started_at_once_have_one_winner(home: Path) -> None:
    servers = []
    for name in ("a", "b", "c"):
        (home / name).mkdir()
        servers.append(Server(home / name, data_dir=home / "data"))

    refusals: list[StartRefused] = []

    def start(server: Server) -> bool:
        try:
            server.start()
        except StartRefused as refusal:
            refusals.append(refusal)
            return False
        return True

    try:
        with ThreadPoolExecutor(3) as pool:
            assert sorted(pool.map(start, servers)) == [False, False, True]
        assert [(refusal.code, "in use" in refusal.said) for refusal in refusals] == [(EXIT_USAGE, True)] * 2
    finally:
        for server in servers:
            server.kill()


def test_made_for_another_shard_count(home: Path) -> None:
    server = Server(home, "[server]\nshards = 3\n")
    with server, server.http_client() as client:
        client.call("reserve", key="k")
    server.config_path.write_text("[server]\nshards = 5\n")
    assert_refused(server, "3", "5", "shards")
    server.config_path.write_text("")
    with server.start(), server.http_client() as client:
        assert client.call("get", key="k").status == 200
    server.kill()
    assert json.loads((server.data_dir / "idemactor.json").read_text())["shards"] == 3


def test_a_read_only_directory(home: Path) -> None:
    (home / "data").mkdir()
    with read_only(home / "data"):
        assert_refused(Server(home), str(home / "data"), "cannot be used")
    server = Server(home)
    with server, server.http_client() as client:
        client.call("reserve", key="k")
    with read_only(home / "data"):
        assert_refused(server, str(home / "data"))
    with server.start(), server.http_client() as client:
        assert client.call("get", key="k").status == 200


def test_a_path_that_is_no_directory(home: Path) -> None:
    (home / "data").write_text("something else")
    assert_refused(Server(home), "not a directory")
    assert (home / "data").read_text() == "something else"
    assert_refused(Server(home, data_dir=home / "data" / "below"), "not a directory")


def test_a_directory_that_lost_its_files(home: Path) -> None:
    server = Server(home)
    with server, server.http_client() as client:
        for number in range(8):
            client.call("reserve", key=f"k{number}")
        server.terminate()
    files = sorted(server.data_dir.glob("shard-*.db"))
    for file in files:
        file.unlink()
    assert_refused(server, "no shard can be read", "backup", *(file.name for file in files))
    assert not any(file.exists() for file in files), "an empty shard took its place"


def test_a_file_that_is_not_ours(home: Path) -> None:
    server = Server(home)
    with server:
        pass
    foreign = server.data_dir / "shard-0001.db"
    foreign.unlink()
    with contextlib.closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE t (x)")
    assert_refused(server, "shard-0001.db", "is not a file of idemactor")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("gone", [True, False])
def test_a_killed_server_whose_last_answer_is_gone_from_the_disk_does_not_start(
    home: Path, gone: bool, workers: int
) -> None:
    server = Server(home, f"[server]\nshards = 2\nworkers = {workers}\n")
    with server:
        with server.http_client() as client:
            for number in range(8):
                assert client.call("reserve", key=f"key-{number}").members["result"] == "reserved"
        server.kill()
        for wal in (home / "data").glob("journal*.db-wal"):
            if gone:
                wal.unlink()
            else:
                content = bytearray(wal.read_bytes())
                content[HEADER_BYTES + len(frames_in(wal)) * FRAME_BYTES - 1_000] ^= 1
                wal.write_bytes(content)
        assert_refused(server, "is damaged: it ends at batch", "backup", "restore --apart")
        checked = run_check(home / "data")
        assert checked.returncode != 0
        assert "it ends at batch" in checked.stdout


def test_killed_while_the_directory_is_made(home: Path) -> None:
    server = Server(home)
    for after_s in (0.25, 0.35, 0.4, 0.45, 0.5):
        server.start_and_kill(after_s)
    with server.start(), server.http_client() as client:
        assert client.call("reserve", key="k").status == 201
    assert_clean(server.data_dir)


# ------------------------------------------------------------------------------------------------------- a full disk


@pytest.fixture(params=["real", "limited"])
def disk(request: pytest.FixtureRequest, home: Path) -> Iterator[Disk]:
    if request.param == "limited":
        path = home / "disk"
        path.mkdir()
        yield LimitedDisk(path)
        return
    with small_disk(home) as found:
        yield found


def test_a_full_disk_at_start(home: Path) -> None:
    with small_disk(home) as disk:
        data_dir = disk.path / "data"
        if isinstance(disk, LimitedDisk):
            refused(Server(home, data_dir=data_dir, prefix=["prlimit", "--fsize=4096"]))
        else:
            disk.fill(None)
            assert_refused(Server(home, data_dir=data_dir), "full", str(data_dir))
            disk.free(None)
        # What the failed start left behind is no obstacle.
        with Server(home, data_dir=data_dir) as server, server.http_client() as client:
            assert client.call("reserve", key="k").status == 201


def test_a_disk_that_fills_up_and_is_freed(home: Path, disk: Disk) -> None:
    server = Server(home, data_dir=disk.path / "data", prefix=[])
    with server, server.http_client(30.0) as client, server.rpc_client(30.0) as rpc:
        held = client.call("reserve", key="held", lease_ms=3_600_000).members
        client.call("accept", key="done", outcome={"status": 200, "body": "kept"})
        disk.fill(server)
        granted = []
        for number in range(60):
            answer = client.call("reserve", key=f"k{number}", payload={"fill": "x" * 2_000})
            if answer.status == 201:
                granted.append((f"k{number}", answer.members["token"]))
                continue
            assert (answer.status, answer.code) == (503, "IDEMPOTENCY_UNAVAILABLE")
            assert answer.members["proceed"] is False
        assert len(granted) < 60, "the disk was not full"
        with pytest.raises(RpcError, match=r"^IDEMPOTENCY_UNAVAILABLE: "):
            _reserve_many(rpc, 20)
        assert client.get("/livez").status == 200

        disk.free(server)
        eventually(lambda: client.get("/readyz").status == 200, 30)
        eventually(lambda: client.call("commit", key="held", token=held["token"]).status == 200, 30)
        for number in range(60):
            eventually(functools.partial(_is_granted, client, f"after{number}"), 30)
        # Who was told to go on meanwhile is known, and what was there before is as it was.
        for key, token in granted:
            assert client.call("get", key=key).members["record"]["token"] == token
        assert client.call("reserve", key="done").members["outcome"]["body"] == "kept"
    assert_clean(disk.path / "data")


def _is_granted(client: HttpClient, key: str) -> bool:
    return client.call("reserve", key=key).members.get("result") in {"reserved", "in_flight"}


def _reserve_many(rpc: RpcClient, count: int) -> None:
    for number in range(count):
        rpc.call("reserve", key=f"rpc{number}")


# ------------------------------------------------------------------------------------- configuration against the data


def test_a_namespace_that_left_the_configuration(home: Path) -> None:
    server = Server(home, TWO_NAMESPACES)
    with server, server.http_client() as client:
        client.call("reserve", "trade", key="k")
    server.config_path.write_text("[namespaces.default]\n")
    assert_refused(server, "trade", "[namespaces.trade]")
    server.config_path.write_text(TWO_NAMESPACES)
    with server.start(), server.http_client() as client:
        assert client.call("forget", "trade", key="k", force=True).status == 200
        server.terminate()
    server.config_path.write_text("[namespaces.default]\n")
    with server.start():
        assert server.alive


def test_a_namespace_whose_records_have_ended_may_leave_before_anybody_swept_them(home: Path) -> None:
    server = Server(home, "[namespaces.default]\n[namespaces.trade]\nlease_ms = 1\nttl_ms = 1\nunresolved_ttl_ms = 1\n")
    with server, server.http_client() as client:
        client.call("accept", "trade", key="committed")
        client.call("reserve", "trade", key="lapsed")
        server.kill()
    server.config_path.write_text("[namespaces.default]\n")
    with server.start(), server.http_client() as client:
        assert client.call("reserve", "default", key="k").status == 201


def test_a_wall_clock_behind_the_disk(home: Path) -> None:
    skewed = Server(home, module="tests.system.skewed_server", extra={CLOCK_AHEAD_MS: str(HOUR_MS)})
    with skewed, skewed.http_client() as client:
        ahead = client.call("reserve", key="k", lease_ms=60_000).members
    server = Server(home)
    assert_refused(server, "clock", "clock_backstep_max_ms", "NTP")
    server.config_path.write_text(f"[server]\nclock_backstep_max_ms = {2 * HOUR_MS}\n")
    with server.start(), server.http_client() as client:
        # Time goes on from the disk's: no lease ends sooner for it, and none is granted into the past.
        assert client.call("reserve", key="k").members["result"] == "in_flight"
        later = client.call("reserve", key="l").members
        assert later["reserved_at"] >= ahead["reserved_at"]


def test_settings_that_changed_free_no_live_key(home: Path) -> None:
    server = Server(home, "[namespaces.default]\nlease_ms = 3600000\nttl_ms = 3600000\n")
    with server, server.http_client() as client:
        client.call("reserve", key="held")
        client.call("accept", key="done")
    server.config_path.write_text("[namespaces.default]\nlease_ms = 1\nttl_ms = 1\n")
    with server.start(), server.http_client() as client:
        time.sleep(0.05)
        assert client.call("reserve", key="held").members["result"] == "in_flight"
        assert client.call("reserve", key="done").members["result"] == "completed"


def test_first_credentials_over_keys_that_no_token_reaches(home: Path) -> None:
    server = Server(home)
    with server, server.http_client() as client:
        client.call("reserve", key="k")
    server.config_path.write_text(token_toml("gateway", "secret", "caller"))
    with server.start():
        assert "keys_out_of_reach" in server.log


# ------------------------------------------------------------------------------------------------------- configuration

BAD_CONFIGURATIONS: Final = {
    "misspelt": ("[server]\ndurablity = 'full'\n", ":2", "durability"),
    "misspelt-section": ("[servr]\n", ":1", "server"),
    "misspelt-namespace-setting": ("[namespaces.default]\nlease_mss = 1\n", ":2", "lease_ms"),
    "impossible-choice": ("[namespaces.default]\non_lease_expiry = 'maybe'\n", ":2", "retry"),
    "impossible-number": ("[namespaces.default]\nlease_ms = 0\n", ":2", "lease_ms"),
    "text-for-a-number": ("[server]\nshards = 'four'\n", ":2", "shards"),
    "boolean-for-a-number": ("[server]\nshards = true\n", ":2", "shards"),
    "lease-beyond-its-total": ("[namespaces.default]\nlease_ms = 9\nlease_total_max_ms = 5\n", "lease_total_max_ms"),
    "bad-name": ("[namespaces.Trade]\n", ":1", "Trade"),
    "bad-pointer": ("[namespaces.default.fingerprint]\nexclude = ['a/b']\n", ":2", "exclude"),
    "no-toml": ("[server\n", ":1", "TOML"),
    "digest-of-a-token": ("[auth.tokens.a]\nsha256='short'\ntenant='a'\nnamespaces=['*']\nrole='caller'\n", "sha256"),
    "beyond-loopback": ("[http]\nbind = ['0.0.0.0:0']\n", "credentials"),
    "certificate-that-is-missing": ("[http]\ntls_cert = 'no.pem'\ntls_key = 'no.key'\n", "no.pem"),
    "certificate-without-key": (f"[http]\ntls_cert = '{CERT}'\n", "tls_key"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CONFIGURATIONS)
def test_a_configuration_that_cannot_be(home: Path, name: str) -> None:
    text, *words = BAD_CONFIGURATIONS[name]
    server = Server(home, text, http=[], rpc=["127.0.0.1:0"])
    assert_refused(server, "server.toml", *words)
    assert not server.data_dir.exists(), "a server that does not start leaves nothing"


def test_beyond_loopback_with_credentials_but_without_tls(home: Path) -> None:
    tokens = token_toml("gateway", "secret", "caller")
    assert_refused(Server(home, tokens, http=["0.0.0.0:0"]), "insecure")
    with Server(home, tokens + "[http]\ninsecure = true\n", http=["0.0.0.0:0"]) as server:
        assert server.http.startswith("0.0.0.0:")


def test_a_certificate_that_is_none(home: Path) -> None:
    (home / "bad.pem").write_text("no certificate\n")
    config = f"[http]\ntls_cert = '{home / 'bad.pem'}'\ntls_key = '{KEY}'\n"
    assert_refused(Server(home, config), "bad.pem")


def test_a_configuration_file_that_is_missing(home: Path) -> None:
    server = Server(home)
    server.config_path.unlink()
    assert_refused(server, "server.toml")


def test_file_then_environment_then_flags(home: Path) -> None:
    config = "[server]\nshards = 2\ndata_dir = 'of-the-file'\n"
    in_environment = {"IDEMACTOR_SERVER__DATA_DIR": "of-the-environment"}
    with Server(home, config, data_dir=""):
        assert shards_of(home / "of-the-file") == 2
    with Server(home, config, data_dir="", extra={**in_environment, "IDEMACTOR_SERVER__SHARDS": "3"}):
        assert shards_of(home / "of-the-environment") == 3
    flags = ["--shards", "5", "--data-dir", "of-the-flag"]
    with Server(home, config, data_dir="", extra={**in_environment, "IDEMACTOR_SERVER__SHARDS": "3"}, flags=flags):
        assert shards_of(home / "of-the-flag") == 5


def test_a_misspelt_variable_of_the_environment(home: Path) -> None:
    assert_refused(Server(home, extra={"IDEMACTOR_SERVER__DATADIR": "x"}), "IDEMACTOR_SERVER__DATADIR", "data_dir")


def test_a_flag_that_does_not_exist(home: Path) -> None:
    refusal = refused(Server(home, flags=["--sharts", "4"]))
    assert (refusal.code, "--sharts" in refusal.said) == (EXIT_USAGE, True)


def test_the_configuration_of_the_repository(home: Path) -> None:
    text = (REPOSITORY / "config.toml").read_text()
    with Server(home, text) as server, server.http_client() as client:
        assert client.get("/v1/trade/policy").members["on_lease_expiry"] == "hold"
        assert client.get("/v1/default/policy").members["on_lease_expiry"] == "retry"


def shards_of(data_dir: Path) -> int:
    found: int = json.loads((data_dir / "idemactor.json").read_text())["shards"]
    return found


# ----------------------------------------------------------------------------------------------------------- addresses


def test_a_port_in_use(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for http, rpc in ((address, "127.0.0.1:0"), ("127.0.0.1:0", address)):
            assert_refused(Server(home, http=[http], rpc=[rpc]), address)


def test_unix_sockets_and_the_order_of_addresses(home: Path) -> None:
    http = [f"unix:{home}/h.sock", "127.0.0.1:0", "[::1]:0"]
    rpc = ["127.0.0.1:0", f"unix:{home}/r.sock"]
    server = Server(home, http=http, rpc=rpc)
    for _ in range(2):
        with server.start():
            assert server.addresses("http")[0] == http[0]
            assert server.addresses("http")[1].startswith("127.0.0.1:")
            assert server.addresses("http")[2].startswith("[::1]:")
            assert server.addresses("rpc")[1] == rpc[1]
            assert (home / "h.sock").stat().st_mode & 0o777 == 0o660
            for address in server.addresses("http"):
                transport = httpx.HTTPTransport(uds=address.removeprefix("unix:") if "unix" in address else None)
                base = "http://idemactor.test" if "unix" in address else f"http://{address}"
                with httpx.Client(transport=transport, base_url=base) as client:
                    assert client.get("/livez").status_code == 200
            for address in server.addresses("rpc"):
                with RpcClient(address) as rpc_client:
                    assert rpc_client.request("ping", {}) == {"result": "pong"}
            server.kill()  # Its socket files stay behind, and are no obstacle.
            assert (home / "h.sock").exists()
    with server.start():
        assert server.terminate() == 0
        assert not (home / "h.sock").exists()
        assert not (home / "r.sock").exists()


def test_a_unix_socket_that_somebody_uses(home: Path) -> None:
    address = f"unix:{home}/h.sock"
    with Server(home, http=[address]) as first:
        (home / "two").mkdir()
        assert_refused(Server(home / "two", http=[address]), address)
        with first.http_client() as client:
            assert client.get("/livez").status == 200
    (home / "file").write_text("precious")
    assert_refused(Server(home, http=[f"unix:{home}/file"]), "no socket")
    assert (home / "file").read_text() == "precious"


def test_one_door_alone(home: Path) -> None:
    with Server(home, "[http]\nbind = []\n", http=[]) as server:
        assert server.ready_line == f"idemactor ready rpc={server.rpc}"
        with server.rpc_client() as rpc:
            assert rpc.call("reserve", key="k")["result"] == "reserved"


# --------------------------------------------------------------------------------------------------- tokens and TLS


def token_toml(name: str, token: str, role: str, namespaces: str = '["*"]', tenant: str = "acme") -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return (
        f'[auth.tokens.{name}]\nsha256 = "{digest}"\ntenant = "{tenant}"\nnamespaces = {namespaces}\nrole = "{role}"\n'
    )


def test_tokens_and_tls_on_every_address(home: Path) -> None:
    tls = f"tls_cert = '{CERT}'\ntls_key = '{KEY}'\n"
    config = (
        f"[http]\n{tls}[rpc]\n{tls}{TWO_NAMESPACES}"
        + token_toml("gateway", "call-me", "caller", '["trade"]')
        + token_toml("ops", "operate", "operator")
        + token_toml("scraper", "scrape", "metrics")
        + token_toml("other", "elsewhere", "operator", tenant="other")
    )
    with Server(home, config, http=["0.0.0.0:0", f"unix:{home}/h.sock"]) as server:
        port = server.http.rpartition(":")[2]
        context = ssl.create_default_context(cafile=str(CERT))
        for uds in (None, str(home / "h.sock")):
            transport = httpx.HTTPTransport(verify=context, uds=uds)
            with httpx.Client(transport=transport, base_url=f"https://localhost:{port}") as client:
                _check_roles(client, f"k-{uds}")
        _check_rpc_auth(server, context)
        # Plain text on a TLS port is nothing.
        with connect(f"127.0.0.1:{port}") as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert b"HTTP/1.1 200" not in plain.recv(1_000)
        for secret in ("call-me", "operate", "scrape"):
            assert secret not in server.log


def _check_roles(client: httpx.Client, key: str) -> None:
    def ask(token: str | None, path: str, members: dict[str, Any] | None = None) -> httpx.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if members is None:
            return client.get(path, headers=headers)
        return client.post(path, headers=headers, json=members)

    for token in (None, "wrong", "call-me2"):
        answer = ask(token, "/v1/trade/reserve", {"key": key})
        assert (answer.status_code, answer.json()["code"]) == (401, "IDEMPOTENCY_UNAUTHENTICATED")
        assert answer.json()["proceed"] is False
    assert ask("scrape", "/v1/trade/reserve", {"key": key}).status_code == 403
    assert ask("call-me", "/v1/default/reserve", {"key": key}).status_code == 403
    assert ask("call-me", "/v1/trade/records").status_code == 403
    held = ask("call-me", "/v1/trade/reserve", {"key": key})
    assert held.status_code == 201
    assert ask("call-me", "/v1/trade/get", {"key": key}).json()["record"]["token"] is None
    assert ask("operate", "/v1/trade/get", {"key": key}).json()["record"]["token"] == held.json()["token"]
    assert ask("elsewhere", "/v1/trade/get", {"key": key}).status_code == 404
    assert ask("elsewhere", "/v1/trade/reserve", {"key": key}).status_code == 201
    assert ask("call-me", "/v1/trade/forget", {"key": key}).status_code == 403
    assert [ask(token, "/metrics").status_code for token in (None, "call-me", "scrape", "operate")] == [
        401, 403, 200, 200,
    ]  # fmt: skip
    assert [ask(None, path).status_code for path in ("/livez", "/readyz", "/openapi.json")] == [200] * 3


def _check_rpc_auth(server: Server, context: ssl.SSLContext) -> None:
    with connect(server.rpc) as plain, context.wrap_socket(plain, server_hostname="localhost") as sock:
        unpacker = msgpack.Unpacker()

        def ask(method: str, params: dict[str, Any]) -> tuple[str | None, Any]:
            sock.sendall(frame(7, method, params))
            while True:
                unpacker.feed(sock.recv(65_536))
                for _, _, error, result in unpacker:
                    return error, result

        reserve = {"namespace": "trade", "key": "over-rpc"}
        assert ask("ping", {})[0] is None
        assert str(ask("reserve", reserve)[0]).startswith("IDEMPOTENCY_UNAUTHENTICATED: ")
        assert str(ask("auth", {"token": "wrong"})[0]).startswith("IDEMPOTENCY_UNAUTHENTICATED: ")
        assert ask("auth", {"token": "call-me"})[1] == {
            "result": "authenticated", "tenant": "acme", "role": "caller",
        }  # fmt: skip
        assert ask("reserve", reserve)[1]["result"] == "reserved"
        assert str(ask("records", {"namespace": "trade"})[0]).startswith("IDEMPOTENCY_FORBIDDEN: ")
        assert ask("auth", {"token": "operate"})[1]["role"] == "operator"
        assert len(ask("records", {"namespace": "trade"})[1]["records"]) >= 1
        # The latest login counts, and a failed one leaves no rights.
        assert ask("auth", {"token": "wrong"})[0] is not None
        assert str(ask("get", reserve)[0]).startswith("IDEMPOTENCY_UNAUTHENTICATED: ")


# ------------------------------------------------------------------------------------------------------------ stopping


def test_sigterm_answers_waiters_and_what_is_in_flight(home: Path) -> None:
    with Server(home) as server, ThreadPoolExecutor(8) as pool:
        with server.http_client() as client:
            client.call("reserve", key="held")

        def wait_http() -> Answer:
            with server.http_client(40) as client:
                return client.call("reserve", key="held", wait_ms=30_000)

        def wait_rpc() -> dict[str, Any]:
            with server.rpc_client(40) as client:
                return client.call("reserve", key="held", wait_ms=30_000)

        over_http: list[Future[Answer]] = [pool.submit(wait_http) for _ in range(3)]
        over_rpc = [pool.submit(wait_rpc) for _ in range(3)]
        time.sleep(0.5)
        started = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - started < 5
        for answer in over_http:
            assert (answer.result().status, answer.result().members["result"]) == (409, "in_flight")
        assert [told.result()["result"] for told in over_rpc] == ["in_flight"] * 3
        with pytest.raises(OSError, match="refused"):
            connect(server.http)
    assert_clean(home / "data")
    assert '"stopped"' in server.log


def test_sigterm_under_load_loses_no_acknowledged_write(home: Path) -> None:
    server = Server(home).start()
    done: list[tuple[str, int]] = []
    refusals: list[Members] = []

    def work(number: int) -> None:
        over_http = number % 2 == 0
        client: HttpClient | RpcClient = server.http_client() if over_http else server.rpc_client()
        with contextlib.suppress(Lost, RpcError), client:
            for turn in range(100_000):
                told = client.call("reserve", key=f"{number}-{turn}")
                members = told.members if isinstance(told, Answer) else told
                if members.get("result") != "reserved":
                    refusals.append(members)
                    return
                done.append((f"{number}-{turn}", members["token"]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert server.terminate() == 0
    for thread in threads:
        thread.join()
    assert len(done) > 50
    assert {members["code"] for members in refusals} <= {"IDEMPOTENCY_OVERLOADED"}
    with server.start(), server.rpc_client() as client:
        for key, token in done:
            assert client.call("get", key=key)["record"]["token"] == token
    assert_calm(server)
    server.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_stops_at_once(home: Path, number: signal.Signals) -> None:
    with Server(home) as server, server.http_client() as http, server.rpc_client() as rpc:
        http.get("/livez")
        rpc.request("ping", {})
        started = time.monotonic()
        server.signal(number)
        assert server.wait() == 0
        assert time.monotonic() - started < 3


def test_standard_output_holds_the_ready_line_alone(home: Path) -> None:
    config = home / "empty.toml"
    config.write_text("")
    command = [sys.executable, "-m", "idemactor", "serve", "--config", str(config), "--data-dir", str(home / "data")]
    command += ["--http", "127.0.0.1:0", "--rpc", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    ready = process.stdout.readline()
    process.terminate()
    rest, said = process.communicate(timeout=30)
    assert ready.startswith("idemactor ready http=127.0.0.1:")
    assert (rest, process.returncode) == ("", 0)
    assert [json.loads(line)["event"] for line in said.splitlines()] == ["ready", "draining", "stopped"]


# ------------------------------------------------------------------------------------------------------------- sources


GITHUB = '{ secret_env = "HOOK_SECRET" }'


def test_a_source_that_forgets_before_its_sender_does(home: Path) -> None:
    config = '[sources.tradingview]\nnamespace = "default"\nwindow_ms = 1000\n'
    assert_refused(Server(home, config), "server.toml:3: sources.tradingview.window_ms", "may try again for 30000 ms")


def test_a_source_without_its_secret(home: Path) -> None:
    config = '[sources.github]\nverify = { secret_env = "HOOK_SECRET" }\n'
    assert_refused(Server(home, config), "server.toml:2: sources.github.verify.secret_env", "HOOK_SECRET is not set")
    with Server(home, config, extra={"HOOK_SECRET": "made-up-hook-secret"}) as server:
        assert "made-up-hook-secret" not in server.log
        assert "source_memory_unsure" not in server.log


def test_a_source_of_which_nobody_knows_how_long_to_remember(home: Path) -> None:
    with Server(home, '[sources.mine]\nid = "/id"\n') as server:
        lines = [json.loads(line) for line in server.log.splitlines()]
    [warning] = [line for line in lines if line["event"] == "source_memory_unsure"]
    assert (warning["level"], warning["source"]) == ("warning", "mine")
    assert "retry_horizon_ms" in warning["detail"]


def test_an_id_that_its_sender_does_not_sign(home: Path) -> None:
    lines = ['id = "header:X-Delivery"', 'verify = { scheme = "stripe", secret_env = "HOOK_SECRET" }']
    config = "\n".join(["[sources.mine]", *lines, "retry_horizon_ms = 1", "[sources.github]", f"verify = {GITHUB}"])
    with Server(home, config, extra={"HOOK_SECRET": "made-up-hook-secret"}) as server:
        events = [json.loads(line) for line in server.log.splitlines()]
    [warning] = [line for line in events if line["event"] == "source_replayable"]
    assert (warning["level"], warning["source"]) == ("warning", "mine")
    assert "header:X-Delivery" in warning["detail"]


@pytest.mark.parametrize(("level", "payloads"), [("debug", True), ("debug", False), ("info", True)])
def test_what_the_log_shows_of_requests(home: Path, level: str, payloads: bool) -> None:
    config = "\n".join(["[log]", f'level = "{level}"', f"payloads = {str(payloads).lower()}", "[sources.github]"])
    config += f'\nverify = {GITHUB}\n[sources.mine]\nid = "/id"\nsecrets = ["/pass"]\nretry_horizon_ms = 1\n'
    request = {"method": "POST", "path": "/", "headers": [["Content-Type", "application/json"]]}
    body = '{"id":"shown-key","pass":"s3cret","a":"shown-body"}'
    with Server(home, config, extra={"HOOK_SECRET": "made-up-hook-secret"}) as server, server.http_client() as client:
        for name in ("mine", "github"):
            members = {"source": name, "request": {**request, "body": body}}
            client.post("/v1/default/accept", members)
        log = server.log
    lines = [json.loads(line) for line in log.splitlines()]
    events = [line for line in lines if line["event"] in ("request", "signature_refused")]
    assert [line["source"] for line in events] == (["mine", "github"] if level == "debug" else ["github"])
    assert ("shown-key" in log, "shown-body" in log) == (level == "debug" and payloads,) * 2
    assert "s3cret" not in log
    assert "made-up-hook-secret" not in log
