"""MessagePack-RPC clients that others wrote, in Python and in JavaScript, reserve, commit and release.

Each is installed into a folder of the test's own, by the ordinary pip and npm: without them, or without a registry that
they can reach, these tests fail and say so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.process import Server, environment

INSTALL_S: Final = 180
RUN_S: Final = 60

EXPECTED: Final = [
    ["reserved", True],
    ["in_flight", False],
    ["committed", None],
    ["completed", False],
    ["released", None],
    ["reserved", True],
    "IDEMPOTENCY_UNKNOWN_NAMESPACE",
]
"""What every one of the programs below prints: ``result`` and ``proceed`` of each answer, and the code of the error."""

# The reference implementation packs text the old way. Its tornado cannot be imported from Python 3.12 on.
OFFICIAL: Final = ("msgpack-rpc-python==0.4.1",) if sys.version_info < (3, 12) else ()

OFFICIAL_PROGRAM: Final = """
    import json, sys
    import msgpackrpc

    client = msgpackrpc.Client(msgpackrpc.Address("127.0.0.1", int(sys.argv[1])), timeout=10, unpack_encoding="utf-8")

    def call(method, **params):
        return client.call(method, params)

    said = []
    def note(answer):
        said.append([answer["result"], answer.get("proceed")])
        return answer

    first = note(call("reserve", namespace="default", key="k"))
    note(call("reserve", namespace="default", key="k"))
    note(call("commit", namespace="default", key="k", token=first["token"], outcome={"status": 200, "body": b"done"}))
    note(call("reserve", namespace="default", key="k"))
    second = call("reserve", namespace="default", key="k2")
    note(call("release", namespace="default", key="k2", token=second["token"]))
    note(call("reserve", namespace="default", key="k2"))
    try:
        call("reserve", namespace="nowhere", key="k")
    except msgpackrpc.error.RPCError as error:
        said.append((error.args[0].decode() if isinstance(error.args[0], bytes) else error.args[0]).partition(":")[0])
    print(json.dumps(said))
"""

ASYNCIO_PROGRAM: Final = """
    import asyncio, json, sys
    import aio_msgpack_rpc

    async def main():
        client = aio_msgpack_rpc.Client(*await asyncio.open_connection("127.0.0.1", int(sys.argv[1])))

        async def call(method, **params):
            return await client.call(method, params)

        said = []
        def note(answer):
            said.append([answer["result"], answer.get("proceed")])
            return answer

        first = note(await call("reserve", namespace="default", key="k"))
        note(await call("reserve", namespace="default", key="k"))
        outcome = {"status": 200, "body": b"done"}
        note(await call("commit", namespace="default", key="k", token=first["token"], outcome=outcome))
        note(await call("reserve", namespace="default", key="k"))
        second = await call("reserve", namespace="default", key="k2")
        note(await call("release", namespace="default", key="k2", token=second["token"]))
        note(await call("reserve", namespace="default", key="k2"))
        try:
            await call("reserve", namespace="nowhere", key="k")
        except Exception as error:
            said.append(str(error).partition(":")[0])
        print(json.dumps(said))

    asyncio.run(main())
"""

JAVASCRIPT_PROGRAM: Final = """
    const rpc = require('msgpack-rpc-lite');
    const client = rpc.createClient(Number(process.argv[2]), '127.0.0.1');
    const said = [];
    const call = async (method, params) => (await client.request(method, {namespace: 'default', ...params}))[0];
    const note = (answer) => {
      said.push([answer.result, answer.proceed === undefined ? null : answer.proceed]);
      return answer;
    };

    (async () => {
      const first = note(await call('reserve', {key: 'k'}));
      note(await call('reserve', {key: 'k'}));
      note(await call('commit', {key: 'k', token: first.token, outcome: {status: 200, body: Buffer.from('done')}}));
      note(await call('reserve', {key: 'k'}));
      const second = await call('reserve', {key: 'k2'});
      note(await call('release', {key: 'k2', token: second.token}));
      note(await call('reserve', {key: 'k2'}));
      await call('reserve', {namespace: 'nowhere', key: 'k'}).catch((error) => said.push(String(error).split(':')[0]));
      console.log(JSON.stringify(said));
      process.exit(0);
    })().catch((error) => { console.error(error); process.exit(1); });
"""


@pytest.fixture
def port(home: Path) -> Iterator[str]:
    """The port of a server of the test's own."""
    with Server(home).start() as server:
        yield server.rpc.rpartition(":")[2]


def install(command: Sequence[str], where: Path) -> None:
    """Run an installer in ``where``."""
    tool = shutil.which(command[0])
    if tool is None:
        pytest.fail(f"{command[0]} is not installed: this test needs it to fetch a third-party client")
    where.mkdir()
    done = subprocess.run(
        [tool, *command[1:]], cwd=where, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)} failed; is its registry within reach?\n{done.stdout}\n{done.stderr}")


def said_by(command: Sequence[str], where: Path, extra: dict[str, str]) -> Any:
    """What a program printed."""
    done = subprocess.run(
        command, cwd=where, env=environment(extra), capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("package", "program"),
    [("aio-msgpack-rpc==0.2.0", ASYNCIO_PROGRAM), *((package, OFFICIAL_PROGRAM) for package in OFFICIAL)],
    ids=lambda value: value.partition("==")[0] if "==" in value and len(value) < 80 else "",
)
def test_a_python_client(package: str, program: str, home: Path, port: str) -> None:
    where = home / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install([*pip, "--target", str(where), package], where)
    script = home / "program.py"
    script.write_text(textwrap.dedent(program))
    # Nothing of this program's own environment: the old client wants an old msgpack.
    assert said_by([sys.executable, str(script), port], where, {"PYTHONPATH": str(where)}) == EXPECTED


def test_a_javascript_client(home: Path, port: str) -> None:
    where = home / "packages"
    install(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", ".", "msgpack-rpc-lite@1.0.2"], where)
    node = shutil.which("node")
    if node is None:
        pytest.fail("node is not installed: this test needs it to run a third-party client")
    script = where / "program.js"
    script.write_text(textwrap.dedent(JAVASCRIPT_PROGRAM))
    assert said_by([node, str(script), port], where, {}) == EXPECTED
