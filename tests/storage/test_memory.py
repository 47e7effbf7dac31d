from __future__ import annotations

import pytest
import trio
import trio.testing

from idemactor.errors import StorageError
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.memory import Fault, MemoryDisk, MemoryEngine
from tests.storage.contract import EngineContract
from tests.storage.samples import NOW, name, pending


class MemoryPlace:
    def __init__(self) -> None:
        self.disk = MemoryDisk()

    def engine(self) -> MemoryEngine:
        return MemoryEngine(self.disk)


class TestMemoryEngine(EngineContract):
    @pytest.fixture
    def disk(self) -> MemoryPlace:
        return MemoryPlace()


BATCH = Batch(NOW, 1, puts=[pending(1, name("k"))])


@pytest.mark.parametrize(
    ("fault", "kept"),
    [
        (Fault(CommitResult.FAILED), False),
        (Fault(CommitResult.UNKNOWN), False),
        (Fault(CommitResult.UNKNOWN, applied=True), True),
    ],
)
async def test_after_a_fault_nothing_works_until_reopen(fault: Fault, kept: bool) -> None:
    engine = MemoryEngine()
    await engine.open()
    engine.disk.faults.append(fault)
    assert await engine.commit(BATCH) is fault.result
    assert await engine.commit(BATCH) is CommitResult.FAILED
    assert await engine.confirm() is CommitResult.FAILED
    with pytest.raises(StorageError):
        await engine.load([name("k")])
    await engine.reopen()
    assert (await engine.load([name("k")]) != {}) is kept
    assert await engine.commit(BATCH) is CommitResult.OK


async def test_a_fenced_owner_stays_fenced() -> None:
    engine = MemoryEngine()
    await engine.open()
    engine.disk.faults.append(Fault(CommitResult.FENCED))
    assert await engine.commit(BATCH) is CommitResult.FENCED
    await engine.reopen()
    assert await engine.confirm() is CommitResult.FENCED
    assert await engine.commit(BATCH) is CommitResult.FENCED
    assert engine.disk.commits == 0


async def test_opening_and_reading_fail_as_often_as_told() -> None:
    engine = MemoryEngine(MemoryDisk(failing_opens=2, failing_reads=1))
    for attempt in (engine.open, engine.reopen):
        with pytest.raises(StorageError):
            await attempt()
    await engine.open()
    with pytest.raises(StorageError):
        await engine.alarms(1)
    await engine.reopen()
    assert await engine.alarms(1) == []


async def test_a_slow_disk_sleeps_before_it_writes(autojump_clock: trio.testing.MockClock) -> None:
    engine = MemoryEngine()
    await engine.open()

    async def slow(_: Batch) -> None:
        await trio.sleep(5)

    engine.disk.before_commit = slow
    started = autojump_clock.current_time()
    with trio.move_on_after(1):
        await engine.commit(BATCH)
    assert engine.disk.commits == 0
    assert await engine.confirm() is CommitResult.FAILED
    await engine.reopen()
    assert await engine.commit(BATCH) is CommitResult.OK
    assert autojump_clock.current_time() - started == pytest.approx(6)


def test_only_an_unknown_batch_can_be_kept_silently() -> None:
    with pytest.raises(ValueError, match="unknown"):
        Fault(CommitResult.FAILED, applied=True)
