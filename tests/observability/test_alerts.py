"""Every alert rule: it fires when what it is about is really so, it is silent on a healthy server, and has its page.

The server is the real one without sockets, on virtual time: scraped every minute by ``GET /metrics``. Those that need
processes or sockets (a server or a worker that is away, a gateway) are in ``tests/system/test_alerts.py`` and
``tests/gateway/proxy``; this module holds that none is missing.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import pytest
import trio
from trio.testing import MockClock

from idemactor.core.policy import OnLeaseExpiry, Policy
from idemactor.errors import StorageError
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.source import Verify
from idemactor.gateway.verify import Scheme
from idemactor.observability.disk import DiskMetrics
from idemactor.observability.metrics import Metrics
from idemactor.shard.actor import Shard
from idemactor.storage.base import CommitResult
from idemactor.storage.memory import Fault
from tests.cli.documented import commands_of, parse, takes_namespace
from tests.gateway.payloads import payloads, request_members
from tests.observability.alerts import ALERTS, BY_COUNTERS, Watcher
from tests.observability.promql import seconds
from tests.server.rig import POLICIES, TOKENS, Rig, running
from tests.server.test_http_app import Client, bearer

ROOT: Final = Path(__file__).resolve().parents[2]
SECTIONS: Final = ("Symptom", "What it means", "What to look at", "How to mend it")
MINUTES: Final = 20
MAILBOX: Final = 64
OF_ALL_NAMESPACES: Final = frozenset({"stuck"})
"""The commands to which ``--namespace`` makes no difference."""
ELSEWHERE: Final = {
    "IdemactorDown": "tests/system/test_alerts.py",
    "IdemactorWorkerDown": "tests/system/test_alerts.py",
    "IdemactorGatewayUnprotected": "tests/gateway/proxy/test_alerts.py",
}


@dataclass(slots=True)
class Patient:
    """A server that something may be wrong with."""

    rig: Rig
    client: Client
    minute: int = 0

    async def post(self, op: str, namespace: str = "default", by: str = "caller-token", **members: Any) -> Any:
        return await self.client.post(f"/v1/{namespace}/{op}", members, headers=bearer(by))

    @property
    def shard(self) -> Shard:
        """The first one."""
        found = self.rig.context.router.shards[0]
        assert isinstance(found, Shard)
        return found

    def key(self, shard: int = 0) -> str:
        """A key of that shard, another one every minute."""
        return next(key for number in range(1_000) if self.owner(key := f"{self.minute}-{number}") == shard)

    def owner(self, key: str) -> int:
        from idemactor.core.keys import Identity, identity_hash, shard_of

        return shard_of(identity_hash(Identity("acme", "default", key)), len(self.rig.disks))


Condition = Callable[[Patient], Awaitable[None]]
"""Is called every minute, before the scrape: brings it about, and keeps it so."""


async def work(patient: Patient) -> None:
    """What callers do all day; a refusal is theirs."""
    key = f"work-{patient.minute}"
    reserved = await patient.post("reserve", key=key)
    if reserved.status == 201:
        await patient.post("commit", key=key, token=reserved.json["token"])


async def quarantined(patient: Patient) -> None:
    disk = patient.rig.disks[0]
    disk.failing_opens = 1_000
    disk.faults.append(Fault(CommitResult.FAILED))
    await patient.post("reserve", key=patient.key())


async def silent(patient: Patient) -> None:
    async def hang(*_: object) -> None:
        await trio.sleep_forever()

    patient.shard._engine.confirm = hang  # type: ignore[method-assign, assignment]


async def writes_fail(patient: Patient) -> None:
    patient.rig.disks[0].faults.append(Fault(CommitResult.FAILED))
    await patient.post("reserve", key=patient.key())


async def slow_disk(patient: Patient) -> None:
    for place in patient.rig.context.router.shards:
        assert isinstance(place, Shard)
        place._engine.last_sync_s = 0.2
    await patient.post("reserve", key=patient.key())


async def overloaded(patient: Patient) -> None:
    ops = [{"op": "reserve", "namespace": "default", "key": f"{patient.minute}-{n}"} for n in range(5 * MAILBOX)]
    await patient.client.post("/v1/batch", {"ops": ops}, headers=bearer("caller-token"))


async def alarms_cannot_be_read(patient: Patient) -> None:
    async def broken(_: int) -> list[Any]:
        raise StorageError("the disk was told to fail")

    if patient.minute == 0:
        for place, disk in zip(patient.rig.context.router.shards, patient.rig.disks, strict=True):
            assert isinstance(place, Shard)
            place._engine.alarms = broken  # type: ignore[method-assign, assignment]
            disk.faults.append(Fault(CommitResult.FAILED))
        for number in range(4_000):
            await patient.post("reserve", key=f"k{number}", lease_ms=30_000)


async def undelivered(patient: Patient) -> None:
    """Nobody fetches it; what is to be sent later is none of that."""
    if patient.minute == 0:
        later = patient.rig.context.now_ms() + 86_400_000
        await patient.post("dispatch", namespace="trade", key="later", intent={"body": "x"}, not_before=later)
        await patient.post("dispatch", namespace="default", key="k", intent={"body": "x"})


async def in_doubt(patient: Patient) -> None:
    if patient.minute == 0:
        await patient.post("reserve", namespace="hold", key="k")


async def long_work(patient: Patient) -> None:
    if patient.minute == 0:
        reserved = await patient.post("reserve", key="k", lease_ms=2 * 3_600_000)
        assert reserved.status == 201
        await trio.sleep(3_500)


async def stale_commit(patient: Patient) -> None:
    if patient.minute == 0:
        first = await patient.post("reserve", namespace="trade", key="k")
        await trio.sleep(6)
        await patient.post("reserve", namespace="trade", key="k")
        await patient.post("commit", namespace="trade", key="k", token=first.json["token"])


async def full(patient: Patient) -> None:
    for number in range(3):
        await patient.post("reserve", namespace="small", key=f"{patient.minute}-{number}")


async def wrong_token(patient: Patient) -> None:
    for number in range(20):
        told = await patient.post("reserve", by="guessed", key=f"k{number}")
        assert told.status == 401


async def forged(patient: Patient) -> None:
    case = next(case for case in payloads() if case.id == "h04-github-push")
    request = replace(case.first, body=case.first.body + b" ")
    told = await patient.post("accept", source="github", request=request_members(request, as_bytes=False))
    assert told.status == 401


async def disk_fills(patient: Patient) -> None:
    if patient.minute == 0:
        patient.rig.context.metrics.registry.register(DiskMetrics(ROOT, ROOT / "nothing"))


CONDITIONS: Final[dict[str, Condition]] = {
    "IdemactorShardQuarantined": quarantined,
    "IdemactorShardSilent": silent,
    "IdemactorWritesFail": writes_fail,
    "IdemactorDiskSlow": slow_disk,
    "IdemactorOverloaded": overloaded,
    "IdemactorAlarmBacklog": alarms_cannot_be_read,
    "IdemactorInDoubtOld": in_doubt,
    "IdemactorUndeliveredOld": undelivered,
    "IdemactorPendingOld": long_work,
    "IdemactorIncidents": stale_commit,
    "IdemactorQuotaReached": full,
    "IdemactorCallersRefused": wrong_token,
    "IdemactorForgedRequests": forged,
    "IdemactorDiskFilling": disk_fills,
}

LASTING: Final = frozenset({"IdemactorOverloaded", "IdemactorDiskSlow", "IdemactorCallersRefused"})
"""The alerts by counters about what lasts: to them a burst is none, as their ``for`` says."""
AT_ONCE: Final = sorted(BY_COUNTERS - LASTING)
"""The others: one event, or one burst, is reason enough."""
BURST: Final = 5


async def watch(
    clock: MockClock,
    condition: Condition,
    *,
    minutes: int = MINUTES,
    looks_from: int = 0,
    watcher: Watcher | None = None,
    among_workers: bool = False,
) -> Watcher:
    """Some minutes in the life of a server, by default twenty.

    Args:
        looks_from: The first minute with a scrape.
        watcher: Has watched its life before the restart.
        among_workers: It is the second of two processes, and tells of both.
    """
    policies = {**POLICIES, "hold": Policy(lease_ms=5_000, on_lease_expiry=OnLeaseExpiry.HOLD)}
    verify = Verify(Scheme.GITHUB, ("S",), ("made-up-github-secret",))
    sources = {"github": replace(SHIPPED["github"], verify=verify)}
    watcher = watcher or Watcher()
    async with running(clock, tokens=TOKENS, policies=policies, sources=sources, mailbox_max=MAILBOX) as rig:
        if among_workers:
            rig.context.reports = functools.partial(two_reports, Metrics(process=False), rig.context.metrics)
        patient = Patient(rig, Client(rig))
        for patient.minute in range(minutes):
            with trio.move_on_after(4_000):
                await condition(patient)
            with trio.move_on_after(5):
                await work(patient)
            if patient.minute >= looks_from:
                scraped = await patient.client.get("/metrics", headers=bearer("metrics-token"))
                assert scraped.status == 200
                watcher.scrape(trio.current_time(), scraped.body.decode())
            await trio.sleep(60)
    return watcher


async def two_reports(first: Metrics, second: Metrics) -> dict[int, str | None]:
    return {0: first.counted(), 1: second.counted()}


def once(alert: str, minute: int) -> Condition:
    """It happens some times in that minute, before its scrape, and never again."""

    async def burst(patient: Patient) -> None:
        if patient.minute == minute:
            for _ in range(BURST):
                await CONDITIONS[alert](patient)
        else:
            for place in patient.rig.context.router.shards:
                assert isinstance(place, Shard)
                place._engine.last_sync_s = 0.0

    return burst


@pytest.mark.parametrize("among_workers", [False, True], ids=["one_process", "workers"])
@pytest.mark.parametrize("minute", [0, 2, 16], ids=["before_the_first_scrape", "after_it", "later"])
@pytest.mark.parametrize("alert", [alert for alert in AT_ONCE if alert in CONDITIONS])
async def test_one_burst_is_enough(alert: str, minute: int, among_workers: bool, autojump_clock: MockClock) -> None:
    watcher = await watch(autojump_clock, once(alert, minute), minutes=minute + 1, among_workers=among_workers)
    assert watcher.fired.get(alert) == watcher.end_s, "it fires at the first scrape after it, and no sooner"


@pytest.mark.parametrize("alert", [alert for alert in AT_ONCE if alert in CONDITIONS])
async def test_as_large_a_burst_as_before_the_restart_is_enough(alert: str, autojump_clock: MockClock) -> None:
    """A counter that begins anew, and comes to where it had been before anybody looks, has not grown."""
    watcher = await watch(autojump_clock, once(alert, 0), minutes=MINUTES)
    assert not watcher.firing(alert)
    await watch(autojump_clock, once(alert, 0), minutes=1, watcher=watcher)
    assert watcher.firing(alert)


@pytest.mark.parametrize("alert", [alert for alert in AT_ONCE if alert in CONDITIONS])
async def test_what_happened_long_before_anybody_looked_is_over(alert: str, autojump_clock: MockClock) -> None:
    """A Prometheus that comes to a server which has counted for long knows no more than that."""
    assert alert not in (await watch(autojump_clock, once(alert, 0), looks_from=MINUTES - 3)).fired


@pytest.mark.parametrize("alert", sorted(LASTING))
async def test_what_lasts_is_told_and_a_burst_is_not(alert: str, autojump_clock: MockClock) -> None:
    for minute in (0, 3):
        assert alert not in (await watch(autojump_clock, once(alert, minute))).fired
    begins, for_min = 3, seconds(ALERTS[alert]["for"]) // 60

    async def lasts(patient: Patient) -> None:
        if patient.minute >= begins:
            await CONDITIONS[alert](patient)

    watcher = await watch(autojump_clock, lasts, minutes=begins + for_min + 1)
    assert watcher.firing(alert), "from its first scrape on, also where nothing of the kind had been counted before"


def test_what_goes_by_increase_asks_for_what_a_young_process_counted() -> None:
    """With one range for both, so that neither leaves a gap."""
    found = {}
    for alert in [alert for alert in ALERTS if "increase(" in ALERTS[alert]["expr"]]:
        told = re.fullmatch(
            r"increase\((?P<of>.+)\[(?P<range>\w+)\]\) (?P<more>> \d+) or (?P=of) (?P=more)"
            r" and on\(job, instance, worker\) idemactor_uptime_seconds < (?P<young>\d+)",
            ALERTS[alert]["expr"],
        )
        assert told is not None, alert
        found[alert] = seconds(told["range"]) == int(told["young"])
    assert found.keys() >= set(AT_ONCE)
    assert all(found.values()), found


@pytest.mark.parametrize("alert", CONDITIONS)
async def test_an_alert_fires_when_it_is_so(
    alert: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = os.statvfs(ROOT)
    # As good as full, but for a twentieth.
    nearly = os.statvfs_result((room.f_bsize, room.f_frsize, 1_000, 50, 50, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: nearly)
    watcher = await watch(autojump_clock, CONDITIONS[alert])
    assert watcher.firing(alert), watcher.last(alert)
    # Nothing but what is wrong: what is in "trade" for tomorrow is not undelivered.
    if alert == "IdemactorUndeliveredOld":
        assert {dict(labels)["namespace"] for labels in watcher.firing(alert)} == {"default"}


async def test_a_healthy_server_is_left_alone(autojump_clock: MockClock) -> None:
    async def well(patient: Patient) -> None:
        if patient.minute == 0:
            patient.rig.context.metrics.registry.register(DiskMetrics(ROOT, ROOT / "nothing"))
        # What happens every day is no alarm: a lease that ran out and was taken over, a caller that was told no.
        await patient.post("reserve", namespace="trade", key="again")
        await patient.post("reserve", key=f"work-{patient.minute}", by="trade-token")

    watcher = await watch(autojump_clock, well)
    assert [alert for alert in ALERTS if watcher.firing(alert)] == []


def test_every_alert_is_tested() -> None:
    assert CONDITIONS.keys() | ELSEWHERE.keys() == ALERTS.keys()
    for alert, module in ELSEWHERE.items():
        assert alert in (ROOT / module).read_text()


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_its_page(alert: str) -> None:
    rule = ALERTS[alert]
    page = ROOT / rule["annotations"]["runbook"]
    assert page.name == f"{alert}.md"
    text = page.read_text()
    assert text.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Symptom",
        "What it means",
        "What to look at",
        "How to mend it",
    ]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"]


def test_every_page_has_its_alert() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "runbook").glob("Idemactor*.md")}
    assert pages == ALERTS.keys()
    index = (ROOT / "docs" / "runbook" / "README.md").read_text()
    assert [alert for alert in ALERTS if f"({alert}.md)" not in index] == []


def pages() -> list[Path]:
    return sorted((ROOT / "docs" / "runbook").glob("*.md"))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_commands_of_a_page_exist(page: Path) -> None:
    """Nobody is to find out at night that a flag has another name."""
    for words in commands_of(page.read_text()):
        try:
            told = parse(words)
        except click.UsageError as error:
            pytest.fail(f"idemactor {' '.join(words)}: {error.format_message()}")
        # An alert comes of any namespace, and what has none is about `default`.
        if takes_namespace(told.command) and words[0] not in OF_ALL_NAMESPACES:
            assert told.params["namespace"] is not None, f"idemactor {' '.join(words)}: which namespace?"


def test_the_commands_of_pages_are_found() -> None:
    """Else nothing of theirs would be looked at."""
    found = [words for page in pages() for words in commands_of(page.read_text())]
    assert {words[0] for words in found} >= {"stuck", "records", "get", "incidents", "resolve", "doubt", "check"}
    assert ["resolve", "KEY", "TOKEN", "released", "--namespace", "NAMESPACE"] in found


async def test_metrics_of_the_pages_exist(autojump_clock: MockClock) -> None:
    watcher = await watch(autojump_clock, in_doubt)
    told = watcher.names | {"idemactor_worker_up", "idemactor_journal_bytes", "idemactor_disk_free_bytes"}
    # Only where something waits to be delivered: see its alert.
    told |= {"idemactor_oldest_undelivered_age_seconds", "idemactor_outbox_entries"}
    for page in pages():
        for name in re.findall(r"`(idemactor_[a-z_]+)`", page.read_text()):
            assert any(name in (one, one.rpartition("_")[0]) for one in told), f"{page.name}: {name}"


async def test_what_the_page_of_old_attempts_does_about_a_dead_holder_works(autojump_clock: MockClock) -> None:
    page = (ROOT / "docs" / "runbook" / "IdemactorPendingOld.md").read_text()
    steps = re.findall(r"`idemactor (doubt|resolve) KEY TOKEN(?: (committed))?", page)
    assert steps == [("doubt", ""), ("resolve", "committed")]
    async with running(autojump_clock, tokens=TOKENS) as rig:
        patient = Patient(rig, Client(rig))
        reserved = await patient.post("reserve", key="k", lease_ms=2 * 3_600_000)
        results = []
        for operation, verdict in steps:
            members = {"verdict": verdict} if verdict else {}
            answer = await patient.post(
                operation, by="operator-token", key="k", token=reserved.json["token"], **members
            )
            results.append(answer.json.get("result"))
        assert results == ["in_doubt", "committed"]
