"""``make demo``: a sender that resends, an exchange that misbehaves, and the proxy between them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.system.process import environment, eventually
from tests.system.programs import EXAMPLES, PATIENCE_S, alive, children_of

PROGRAM = EXAMPLES / "tradingview" / "fills.py"


def test_nothing_is_filled_twice_behind_the_proxy() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, env=environment(), timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began < 60
    [total] = [line.split() for line in done.stdout.splitlines() if line.startswith("all ")]
    wanted, without, with_it = map(int, total[1:])
    assert wanted == with_it
    assert without > 2 * wanted


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_its_server_ends_with_it(ended_by: signal.Signals, tmp_path: Path) -> None:
    told = environment({"TMPDIR": str(tmp_path)})
    with subprocess.Popen([sys.executable, str(PROGRAM)], stdout=subprocess.DEVNULL, env=told) as demo:
        eventually(lambda: any(tmp_path.rglob("*.db")), PATIENCE_S)
        [server] = children_of(demo.pid)
        os.kill(demo.pid, ended_by)
        try:
            assert demo.wait(PATIENCE_S) == 130
            assert not alive(server)
            assert list(tmp_path.iterdir()) == []
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)


@pytest.fixture(scope="module")
def fills() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tradingview_fills", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("changed", [{"BROKEN": 2}, {"FINE": 0}, {"REFUSED": 1}])
def test_a_double_fill_is_a_failure_and_so_is_a_lost_order(fills: ModuleType, changed: Mapping[str, int]) -> None:
    as_wanted = {case.name: case.fills for case in fills.CASES}
    assert list(fills.failures(as_wanted)) == []
    assert len(list(fills.failures(as_wanted | dict(changed)))) == 1


def test_the_sender_behaves_as_tradingview(fills: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(fills.time, "sleep", slept.append)
    for given, tried in (([200], 1), ([400], 1), ([409], 1), ([500, 200], 2), ([0, 503, 500, 500, 200], 4)):
        answers = iter(given)
        monkeypatch.setattr(fills, "_post", lambda _address, _body, answers=answers: next(answers))
        slept.clear()
        assert fills.send("nowhere", fills.CASES[0]) == given[:tried]
        assert slept == [5.0] * (tried - 1)
