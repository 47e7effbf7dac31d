"""The wall clock is stepped by hours under a server and between two; the machine sleeps, and boots in 1970."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.system.process import Server, StartRefused
from tests.system.stepped_server import CLOCKS

HOUR_S: Final = 3_600
LEASE_MS: Final = 1_800_000
CONFIG: Final = '[namespaces.default]\non_lease_expiry = "hold"\nttl_ms = 86400000\n'


class Machine:
    """A server and its clocks."""

    def __init__(self, home: Path) -> None:
        self._clocks = home / "clocks"
        self.set()
        self.server = Server(home, CONFIG, module="tests.system.stepped_server", extra={CLOCKS: str(self._clocks)})

    def set(self, wall_s: int = 0, suspended_s: int = 0) -> None:
        new = self._clocks.with_suffix(".new")
        new.write_text(f"{wall_s} {suspended_s}")
        new.rename(self._clocks)


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_steps_under_a_running_server_matter_to_no_key(machine: Machine) -> None:
    with machine.server as server, server.http_client() as client:
        held = client.call("reserve", key="held", lease_ms=LEASE_MS).members
        client.call("accept", key="done", outcome={"status": 200, "body": "kept"})
        latest = held["reserved_at"]
        for wall_s in (5 * HOUR_S, -5 * HOUR_S, 100 * HOUR_S, -1_000_000 * HOUR_S // 1_000, 0):
            machine.set(wall_s)
            assert client.call("reserve", key="held").members["result"] == "in_flight"
            assert client.call("reserve", key="done").members["result"] == "completed"
            granted = client.call("reserve", key=f"at{wall_s}").members
            assert latest <= granted["reserved_at"] < latest + 60_000
            latest = granted["reserved_at"]
        assert client.call("commit", key="held", token=held["token"]).status == 200


def test_a_step_forward_across_a_restart_ends_leases_and_no_record_before_its_time(machine: Machine) -> None:
    with machine.server as server, server.http_client() as client:
        client.call("reserve", key="held", lease_ms=LEASE_MS)
        client.call("accept", key="done")
        server.terminate()
    machine.set(5 * HOUR_S)
    with machine.server.start() as server, server.http_client() as client:
        # Whether it was done nobody knows: it is in doubt, and nobody else is let in.
        assert client.call("reserve", key="held").members["result"] == "in_doubt"
        assert client.call("reserve", key="done").members["result"] == "completed"


def test_a_step_back_across_a_restart_is_refused_with_the_way_out(machine: Machine) -> None:
    with machine.server as server, server.http_client() as client:
        client.call("reserve", key="held", lease_ms=LEASE_MS)
        server.terminate()
    machine.set(-5 * HOUR_S)
    with pytest.raises(StartRefused, match="clock_backstep_max_ms"):
        machine.server.start()
    machine.set(-60)
    with machine.server.start() as server, server.http_client() as client:
        assert client.call("reserve", key="held").members["result"] == "in_flight"


def test_a_machine_that_slept_grants_no_longer_leases_for_it(machine: Machine) -> None:
    with machine.server as server, server.http_client() as client:
        client.call("reserve", key="held", lease_ms=LEASE_MS)
        machine.set(wall_s=2 * HOUR_S, suspended_s=2 * HOUR_S)
        assert client.call("reserve", key="held").members["result"] == "in_doubt"


def test_a_machine_that_boots_in_1970_is_told_to_set_its_clock_in_an_old_directory_and_in_a_new_one(
    machine: Machine,
) -> None:
    back_to_1970 = -int(time.time()) + 30
    machine.set(back_to_1970)
    with pytest.raises(StartRefused, match="wall clock was not set"):
        machine.server.start()
    machine.set()
    with machine.server.start() as server, server.http_client() as client:
        client.call("accept", key="done")
        server.terminate()
    machine.set(back_to_1970)
    with pytest.raises(StartRefused, match="wall clock was not set"):
        machine.server.start()
    machine.set()
    with machine.server.start() as server, server.http_client() as client:
        assert client.call("reserve", key="done").members["result"] == "completed"
