"""``idemactor run``: what becomes of the key, by how the command ends.

The shards are in this process, with a clock that the tests move; the commands are real.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from idemactor.cli.exits import Exit
from idemactor.cli.holding import Plan, Running
from idemactor.client import Client, InDoubtError, KeyRecord, Outcome, Policy, Reserved, UnknownKeyError

DEFAULTS: dict[str, Any] = {
    "lease_ms": None,
    "ttl_ms": None,
    "window_ms": None,
    "payload_json": None,
    "fingerprint": None,
    "holder": None,
    "wait": 0,
    "commit_on": frozenset({0}),
    "release_on": frozenset(),
    "capture": False,
    "capture_max": 100,
    "on_lost": "terminate",
    "grace_ms": 60_000,
    "on_unavailable": None,
    "done_exit": 15,
    "busy_exit": 10,
}

LEASE_MS = 300_000


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client.in_memory(namespaces={"default": Policy()}) as opened:
        yield opened


def plan(*command: str, **given: Any) -> Plan:
    return Plan(command=command, key="k", **(DEFAULTS | given))


def shell(script: str, **given: Any) -> Plan:
    return plan("/bin/sh", "-c", script, **given)


async def run(client: Client, asked: Plan) -> int:
    with trio.fail_after(30):
        return await Running(asked).run(client, "default")


async def record_of(client: Client) -> KeyRecord:
    return await client.get("default", "k")


# ----------------------------------------------------------------------------------------------------- how it may end


async def test_exit_code_0_commits(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    assert await run(client, shell("echo out; exit 0")) == 0
    record = await record_of(client)
    assert (record.state, record.outcome) == ("committed", Outcome(200, (("exit-status", "0"),)))
    assert capfd.readouterr() == ("out\n", "")


async def test_any_other_exit_code_leaves_it_in_doubt(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    assert await run(client, shell("exit 3")) == 3
    record = await record_of(client)
    assert (record.state, record.reason) == ("in_doubt", "exit status 3")
    said = "idemactor: the command ended with exit status 3: k is in doubt until it is resolved\n"
    assert capfd.readouterr().err == said
    # And so it does not run again.
    assert await run(client, shell("echo again")) == Exit.IN_DOUBT
    out, err = capfd.readouterr()
    assert (out, err.partition("(")[0]) == ("", "idemactor: not run: in doubt: nobody knows whether it happened ")


async def test_a_signal_leaves_it_in_doubt(client: Client) -> None:
    assert await run(client, shell("kill -9 $$")) == 128 + signal.SIGKILL
    assert (await record_of(client)).reason == "SIGKILL"


@pytest.mark.parametrize(("script", "code"), [("exit 75", 75), ("kill -15 $$", 143)])
async def test_listed_exit_codes_release(client: Client, script: str, code: int) -> None:
    assert await run(client, shell(script, release_on=frozenset({75, 143}))) == code
    with pytest.raises(UnknownKeyError):
        await record_of(client)
    assert await run(client, shell("exit 0")) == 0


async def test_listed_exit_codes_commit(client: Client) -> None:
    assert await run(client, shell("exit 24", commit_on=frozenset({0, 24}))) == 24
    record = await record_of(client)
    assert (record.state, record.outcome) == ("committed", Outcome(200, (("exit-status", "24"),)))


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("no-such-command", Exit.NO_SUCH_COMMAND, "no-such-command: No such file or directory"),
        ("/etc/passwd", Exit.CANNOT_EXECUTE, "/etc/passwd: Permission denied"),
        ("nul\0", Exit.CANNOT_EXECUTE, "nul\\u0000: embedded null byte"),
    ],
)
async def test_a_command_that_cannot_be_started_releases(
    client: Client, capfd: pytest.CaptureFixture[str], command: str, code: Exit, said: str
) -> None:
    assert await run(client, plan(command)) == code
    assert capfd.readouterr().err == f"idemactor: {said}\n"
    with pytest.raises(UnknownKeyError):
        await record_of(client)


async def test_what_was_done_before_is_not_run(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    assert await run(client, shell("echo once")) == 0
    assert await run(client, shell("echo twice")) == Exit.COMPLETED
    assert await run(client, shell("echo twice", done_exit=0)) == 0
    out, err = capfd.readouterr()
    assert out == "once\n"
    assert [line.partition(" (operation")[0] for line in err.splitlines()] == [
        "idemactor: not run: k was done before"
    ] * 2


async def test_what_is_in_flight_is_not_run(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    await client.reserve("default", "k", holder="somebody")
    assert await run(client, shell("echo twice")) == Exit.IN_FLIGHT
    assert await run(client, shell("echo twice", busy_exit=0)) == 0
    out, err = capfd.readouterr()
    assert (out, err.count("not run: in flight: attempt 1 of somebody began")) == ("", 2)


async def test_another_payload_is_not_run(client: Client) -> None:
    assert await run(client, shell("exit 0", payload_json='{"a":1}')) == 0
    assert await run(client, shell("exit 0", payload_json='{"a":2}')) == Exit.MISMATCH
    assert await run(client, shell("exit 0", payload_json='{"a":1.0}')) == Exit.COMPLETED


async def test_waiting_runs_it_when_it_is_free(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    held = await client.reserve("default", "k")
    assert isinstance(held, Reserved)
    codes_seen: list[int] = []

    async def waiting() -> None:
        codes_seen.append(await run(client, shell("echo run", wait=True)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting)
        await trio.testing.wait_all_tasks_blocked()
        await client.release("default", "k", held.token)
    assert codes_seen == [0]
    assert capfd.readouterr().out == "run\n"


# ------------------------------------------------------------------------------------------------ what it is told, says


async def test_what_the_command_finds_in_its_environment(
    client: Client, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDEMACTOR_ATTEMPT", "from a run around this one")
    names = ("KEY", "NAMESPACE", "ATTEMPT", "TAKEOVER", "FENCING_TOKEN")
    script = "; ".join(f'echo "$IDEMACTOR_{name}"' for name in names)
    assert await run(client, shell(f"{script}; exit 3")) == 3
    assert capfd.readouterr().out.split() == ["k", "default", "1", "false", "1"]
    operation_id = (await record_of(client)).operation_id
    assert await run(client, shell("echo $IDEMACTOR_OPERATION_ID", wait=0)) == Exit.IN_DOUBT
    await client.resolve("default", "k", 1, "released")
    assert await run(client, shell("echo $IDEMACTOR_OPERATION_ID")) == 0
    assert capfd.readouterr().out.strip() not in ("", operation_id)


async def test_a_takeover_is_said_and_keeps_the_operation(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    first = await client.reserve("default", "k")
    client.clock.advance(LEASE_MS)
    assert await run(client, shell("echo $IDEMACTOR_ATTEMPT $IDEMACTOR_TAKEOVER $IDEMACTOR_OPERATION_ID")) == 0
    out, err = capfd.readouterr()
    assert out == f"2 true {first.operation_id}\n"
    assert err == "idemactor: takeover: an earlier attempt at k may already have had its effect\n"


@pytest.mark.parametrize(
    ("script", "kept", "dropped"),
    [
        ("printf abc; printf err >&2", b"abc", None),
        ("printf 0123456789abc", b"3456789abc", "3"),
        ("exec >&-; exit 0", b"", None),
        # What goes on writing in the background does not keep the run from ending.
        ("printf abc; (sleep 60; echo late) & exit 0", b"abc", None),
    ],
)
async def test_captured_output_is_passed_on_and_its_end_is_kept(
    client: Client, capfd: pytest.CaptureFixture[str], script: str, kept: bytes, dropped: str | None
) -> None:
    assert await run(client, shell(script, capture=True, capture_max=10)) == 0
    outcome = (await record_of(client)).outcome
    assert outcome is not None
    assert (outcome.body, dict(outcome.headers).get("output-bytes-dropped")) == (kept, dropped)
    assert capfd.readouterr().out.encode().endswith(kept)


@pytest.mark.parametrize(
    ("room", "kept", "headers"),
    [
        (100, b"x" * 60, (("exit-status", "0"),)),
        (72, b"x" * 60, (("exit-status", "0"),)),
        (71, b"x" * 37, (("exit-status", "0"), ("output-bytes-dropped", "23"))),
        (34, b"", (("exit-status", "0"), ("output-bytes-dropped", "60"))),
    ],
)
async def test_what_is_captured_fits_into_what_the_namespace_keeps(
    room: int, kept: bytes, headers: tuple[tuple[str, str], ...]
) -> None:
    async with Client.in_memory(namespaces={"default": Policy(outcome_max_bytes=room)}) as client:
        assert await run(client, shell(f"printf {'x' * 60}", capture=True)) == 0
        assert (await record_of(client)).outcome == Outcome(200, headers, kept)


async def test_an_outcome_that_the_namespace_has_no_room_for_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    async with Client.in_memory(namespaces={"default": Policy(outcome_max_bytes=20)}) as client:
        assert await run(client, shell("printf 0123456789", capture=True)) == 0
        assert "outcome_max_bytes (20) has no room for the outcome: only its status is kept" in capfd.readouterr().err
        assert (await record_of(client)).state == "committed"


async def test_much_output_is_passed_on_whole(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    script = "import sys; sys.stdout.write('0123456789abcde\\n' * 50_000)"
    assert await run(client, plan(sys.executable, "-c", script, capture=True)) == 0
    assert capfd.readouterr().out == "0123456789abcde\n" * 50_000
    outcome = (await record_of(client)).outcome
    assert outcome is not None
    assert outcome.headers == (("exit-status", "0"), ("output-bytes-dropped", "799900"))


async def test_what_it_left_behind_may_write_for_ever(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    assert await run(client, shell("yes & sleep 0.1; exit 0", capture=True)) == 0
    assert set(capfd.readouterr().out.split()) == {"y"}


# ------------------------------------------------------------------------------------------------- leases and signals


async def until(path: Path) -> None:
    """Wait until the command has made a file: it is running then."""
    with trio.fail_after(20):
        while not await trio.Path(path).exists():  # noqa: ASYNC110 - The one who makes it is another process.
            await trio.sleep(0.01)


async def test_a_lost_lease_ends_the_command(client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ready = tmp_path / "ready"
    code = await while_running(client, shell(f"touch {ready}; sleep 60"), ready, lambda: client.clock.advance(LEASE_MS))
    assert code == Exit.LEASE_LOST
    said = capfd.readouterr().err
    assert said.startswith("idemactor: the lease was lost: ending the command\n")
    with pytest.raises(InDoubtError) as caught:
        await client.reserve("default", "k")
    assert caught.value.reason == "lease lost, SIGTERM"


async def test_a_server_that_forgot_the_key_loses_the_lease(client: Client, tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    async def forget() -> None:
        await client.forget("default", "k", force=True)
        client.clock.advance(LEASE_MS // 2)

    assert await while_running(client, shell(f"touch {ready}; sleep 60"), ready, forget) == Exit.LEASE_LOST
    with pytest.raises(UnknownKeyError):
        await record_of(client)


@pytest.mark.parametrize("code", [0, 7, 75])
async def test_how_a_command_ends_for_a_lost_lease_proves_nothing(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str], code: int
) -> None:
    ready = tmp_path / "ready"
    asked = shell(f"trap 'exit {code}' TERM; touch {ready}; while :; do sleep 0.05; done", release_on=frozenset({75}))
    assert await while_running(client, asked, ready, lambda: client.clock.advance(LEASE_MS)) == Exit.LEASE_LOST
    record = await record_of(client)
    assert (record.state, record.reason) == ("in_doubt", f"lease lost, exit status {code}")
    assert f"the command ended with exit status {code}: k is in doubt until it is resolved\n" in capfd.readouterr().err


async def test_who_lost_the_lease_to_somebody_is_told_so(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ready = tmp_path / "ready"

    async def take_over() -> None:
        client.clock.advance(LEASE_MS)
        await client.reserve("default", "k")

    script = f"trap 'sleep 0.2; exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"
    assert await while_running(client, shell(script), ready, take_over) == Exit.LEASE_LOST
    said = "the command ended with exit status 0, but that was not taken: stale: the token is not that of the latest"
    assert said in capfd.readouterr().err
    record = await record_of(client)
    assert (record.state, record.attempt, record.contested) == ("pending", 2, False)


async def test_whose_key_was_taken_over_is_told_so_and_not_that_it_is_in_doubt(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ready, lost = tmp_path / "ready", tmp_path / "lost"
    script = f"touch {ready}; while ! test -e {lost}; do sleep 0.02; done; exit 4"

    async def take_over() -> None:
        client.clock.advance(LEASE_MS)
        await client.reserve("default", "k")
        lost.touch()

    assert await while_running(client, shell(script, on_lost="warn"), ready, take_over) == Exit.STALE
    said = capfd.readouterr().err
    assert "the command ended with exit status 4, but that was not taken: stale: " in said
    assert "in doubt" not in said


async def test_who_does_not_end_is_killed(client: Client, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; touch {ready}; while :; do sleep 0.05; done"
    asked = shell(script, grace_ms=50)
    assert await while_running(client, asked, ready, lambda: client.clock.advance(LEASE_MS)) == Exit.LEASE_LOST
    assert (await record_of(client)).reason == "lease lost, SIGKILL"


async def test_a_lost_lease_only_warns_where_that_is_asked(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ready, lost = tmp_path / "ready", tmp_path / "lost"
    script = f"touch {ready}; while ! test -e {lost}; do sleep 0.02; done"

    def lose() -> None:
        client.clock.advance(LEASE_MS)
        lost.touch()

    assert await while_running(client, shell(script, on_lost="warn"), ready, lose) == 0
    assert "the lease was lost: somebody else may run the command now" in capfd.readouterr().err
    assert (await record_of(client)).state == "committed"


async def test_a_commit_that_somebody_took_over_is_an_incident_and_said(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ready, lost = tmp_path / "ready", tmp_path / "lost"
    script = f"touch {ready}; while ! test -e {lost}; do sleep 0.02; done"

    async def take_over() -> None:
        client.clock.advance(LEASE_MS)
        await client.reserve("default", "k")
        lost.touch()

    assert await while_running(client, shell(script, on_lost="warn"), ready, take_over) == Exit.STALE
    said = "the command ended with exit status 0, but that was not taken: stale: the token is not"
    assert said in capfd.readouterr().err
    assert [incident.token async for incident in client.incidents("default")] == [1]


async def while_running(client: Client, asked: Plan, ready: Path, act: Callable[[], Any]) -> int:
    """Run a command, do something once it runs, and give the exit code."""
    codes_seen: list[int] = []

    async def running() -> None:
        codes_seen.append(await run(client, asked))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(running)
        await until(ready)
        done = act()
        if done is not None:
            await done
    return codes_seen[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1])
async def test_signals_are_the_command_s(client: Client, tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 7' {number.name[3:]}; touch {ready}; while :; do sleep 0.05; done"
    assert await while_running(client, shell(script), ready, lambda: os.kill(os.getpid(), number)) == 7


async def test_a_signal_while_it_waits_ends_the_waiting(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    await client.reserve("default", "k")
    codes_seen: list[int] = []

    async def waiting() -> None:
        codes_seen.append(await run(client, shell("echo run", wait=True)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGTERM)
    assert codes_seen == [143]
    assert capfd.readouterr() == ("", "idemactor: not run: SIGTERM came first\n")


async def test_a_signal_just_after_the_end_does_not_keep_it_from_being_told(
    client: Client, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = client.doubt

    async def slow(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep(0.2)
        return await tell(*arguments, **named)

    monkeypatch.setattr(client, "doubt", slow)
    assert await run(client, shell("exit 9")) == 9
    said = "idemactor: the command ended with exit status 9: k is in doubt until it is resolved\n"
    assert capfd.readouterr().err == said


async def test_what_is_ignored_stays_ignored(client: Client) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert await run(client, shell("kill -HUP $$; exit 5")) == 5
    finally:
        signal.signal(signal.SIGHUP, before)
