"""What a door's own observer sees reaches the server's, under the door's name and not the listener's."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from idemactor.observability.metrics import Metrics
from idemactor.server.door_observer import DoorObserver
from idemactor.server.http_guard import HttpObserver
from idemactor.server.http_protocol import Phase


def test_everything_is_told_on() -> None:
    metrics = Metrics(process=False)
    observer = DoorObserver(metrics, "http")
    observer.connection_opened("127.0.0.1:1")
    observer.connection_opened("unix:/x")
    observer.connection_closed("unix:/x")
    observer.connection_refused("unix:/x")
    observer.connection_failed("unix:/x", RuntimeError("x"))
    observer.app_failed(RuntimeError("x"))
    observer.deadline_passed(Phase.ANSWER)
    observer.deadline_passed(Phase.IDLE)
    observer.request_refused(431)
    observer.request_refused(503)
    found = {
        (sample.name.removeprefix("idemactor_"), sample.labels.get("code")): sample.value
        for family in text_string_to_metric_families(metrics.render([], 0).decode())
        for sample in family.samples
        if sample.labels.get("door") == "http"
    }
    assert found == {
        ("connections_total", None): 2,
        ("connections_open", None): 1,
        ("connection_failures_total", None): 3,
        ("refused_total", "IDEMPOTENCY_OVERLOADED"): 2,
        ("refused_total", "IDEMPOTENCY_INVALID_REQUEST"): 1,
    }


def test_it_is_an_observer_of_every_door() -> None:
    assert isinstance(DoorObserver(Metrics(process=False), "rpc"), HttpObserver)
