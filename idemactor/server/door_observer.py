"""What the doors' own observers see, told to the server's: one adapter for each door."""

from __future__ import annotations

from idemactor.errors import Code
from idemactor.observability.observer import Observer
from idemactor.server.http_guard import HttpObserver
from idemactor.server.http_protocol import Phase

_CODES = {408: Code.INVALID_REQUEST, 503: Code.OVERLOADED}


class DoorObserver(HttpObserver):
    """Tells ``observer`` what happens at the door of this name (``http``, ``rpc``), wherever it listens."""

    def __init__(self, observer: Observer, door: str) -> None:
        self._observer = observer
        self._door = door

    def connection_opened(self, listener: str) -> None:  # noqa: ARG002
        self._observer.connection_opened(self._door)

    def connection_closed(self, listener: str) -> None:  # noqa: ARG002
        self._observer.connection_closed(self._door)

    def connection_refused(self, listener: str) -> None:  # noqa: ARG002
        self._observer.refused(self._door, Code.OVERLOADED)

    def connection_failed(self, listener: str, error: BaseException) -> None:  # noqa: ARG002
        self._observer.connection_failed(self._door, error)

    def request_refused(self, status: int) -> None:
        self._observer.refused(self._door, _CODES.get(status, Code.INVALID_REQUEST))

    def deadline_passed(self, phase: Phase) -> None:
        if phase is Phase.ANSWER:
            self._observer.connection_failed(self._door, TimeoutError("an answer was not read in time"))

    def app_failed(self, error: BaseException) -> None:
        self._observer.connection_failed(self._door, error)
