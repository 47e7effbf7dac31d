"""What all processes of a server read in the same place: the latest tokens, whole, or nothing."""

from __future__ import annotations

import os

from idemactor.config import Role, TokenEntry
from idemactor.supervisor.bulletin import Bulletin
from idemactor.supervisor.process import start_child

TOKENS = (
    TokenEntry("one", bytes(range(32)), "acme", ("*",), Role.OPERATOR),
    TokenEntry("zwei-ü", b"\xff" * 32, "other", ("trade", "pay"), Role.METRICS),
)


def test_what_was_posted_last_is_read() -> None:
    bulletin = Bulletin()
    assert bulletin.read() is None
    for tokens in (TOKENS, TOKENS[:1], (), TOKENS):
        bulletin.post(tokens)
        assert bulletin.read() == tokens


def test_half_of_it_is_nothing() -> None:
    bulletin = Bulletin()
    bulletin.post(TOKENS)
    os.pwrite(bulletin._fd, b"x", 40)
    assert bulletin.read() is None
    os.ftruncate(bulletin._fd, 10)
    assert bulletin.read() is None


def test_a_copy_of_the_process_sees_what_comes_later() -> None:
    bulletin = Bulletin()
    go, started = os.pipe()

    def look(tell: object) -> None:
        assert callable(tell)
        os.read(go, 1)
        tell(repr(bulletin.read()).encode())

    child = start_child(look)
    bulletin.post(TOKENS)
    os.write(started, b"x")
    os.set_blocking(child.news, True)
    assert child.read() == repr(TOKENS).encode()
    os.waitpid(child.pid, 0)
    child.forget()
    os.close(go)
    os.close(started)
