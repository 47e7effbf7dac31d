"""What stands between a gateway and idemactor in a test: it passes bytes on, and loses answers when told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from tests.system.clients import connect


class Relay:
    """A port that leads to ``target``.

    Attributes:
        lose: How many of the answers to come are lost: the question arrives, and the connection breaks.
        lost: How many were.
    """

    def __init__(self, target: str) -> None:
        self.lose = 0
        self.lost = 0
        self._target = target
        self._lock = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0), backlog=128)

    def __enter__(self) -> Relay:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._door.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._door.getsockname()[1]}"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._door.accept()
                threading.Thread(target=self._carry, args=(caller,), daemon=True).start()

    def _carry(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError), connect(self._target, timeout_s=60) as server:
            threading.Thread(target=self._pass, args=(caller, server), daemon=True).start()
            while data := server.recv(65_536):
                if self._loses():
                    break
                caller.sendall(data)
            # Closing alone would tell nobody while the other thread still reads.
            caller.shutdown(socket.SHUT_RDWR)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _loses(self) -> bool:
        with self._lock:
            if not self.lose:
                return False
            self.lose -= 1
            self.lost += 1
            return True
