"""Child processes: what they say, how they end, and that they never outlive their parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from idemactor.errors import StartError
from idemactor.supervisor import process
from idemactor.supervisor.process import EXIT_FAILED, EXIT_USAGE, start_child
from tests.system.process import environment
from tests.system.worker_server import is_alive

Tell = Callable[[bytes], None]


def end_of(work: Callable[[Tell], None]) -> tuple[bytes, int]:
    """What a child that does ``work`` says, and its exit code."""
    child = start_child(work)
    said = b""
    while not child.silent:
        select.select([child.news], [], [], 10)
        said += child.read()
    _, status = os.waitpid(child.pid, 0)
    child.forget()
    return said, os.waitstatus_to_exitcode(status)


def test_what_a_child_says_arrives() -> None:
    parent = os.getpid()

    def work(tell: Tell) -> None:
        assert os.getppid() == parent
        tell(b"one ")
        tell(b"two")

    assert end_of(work) == (b"one two", 0)


def test_mistakes_are_said_and_are_an_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    def mistaken(_: Tell) -> None:
        raise ExceptionGroup("several", [StartError("this is wrong"), ExceptionGroup("", [StartError("and that")])])

    assert end_of(mistaken) == (b"", EXIT_USAGE)
    assert capfd.readouterr().err == "idemactor: this is wrong\nidemactor: and that\n"


def test_a_bug_is_told_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    def broken(_: Tell) -> None:
        raise ZeroDivisionError("a bug")

    assert end_of(broken) == (b"", EXIT_FAILED)
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err


def test_a_child_that_is_killed_says_no_more() -> None:
    def work(tell: Tell) -> None:
        tell(b"x")
        os.kill(os.getpid(), signal.SIGKILL)

    assert end_of(work) == (b"x", -signal.SIGKILL)


def test_a_child_obeys_sigterm_and_not_the_terminal() -> None:
    def work(tell: Tell) -> None:
        tell(b"up")
        for number in (signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        tell(b" still")
        os.kill(os.getpid(), signal.SIGTERM)
        tell(b" never")

    assert end_of(work) == (b"up still", -signal.SIGTERM)


def test_a_child_is_told_to_stop_however_early(monkeypatch: pytest.MonkeyPatch) -> None:
    # In the copy, before it takes signals anew: its handlers are still those of the parent, which only takes notes.
    monkeypatch.setattr(process, "_die_with", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert end_of(lambda tell: tell(b"never")) == (b"", -signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


PARENT = """
import os, signal, sys, time
from idemactor.supervisor.process import start_child

def work(tell):
    # Nothing short of SIGKILL would end it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell(b"x")
    while True:
        time.sleep(60)

child = start_child(work)
os.set_blocking(child.news, True)
assert child.read
os.read(child.news, 1)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_child_does_not_outlive_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment()
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        parent.wait()
    end = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < end
