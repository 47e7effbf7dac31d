"""The requests of real senders through the proxy: a resend is one call of the upstream, and no secret shows."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock

from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.proxy.routes import Route
from idemactor.gateway.request import RawRequest
from tests.gateway.payloads import OWN, START_MS, Payload, payloads
from tests.gateway.proxy.rig import ORIGIN, Proxy, Received, Told, proxying

CASES = payloads()
IDS = [case.id for case in CASES]
SOURCES = {**SHIPPED, **{source.name: source for source in OWN.values()}}


def route_of(case: Payload) -> Route:
    return Route("/", ORIGIN, "default", source=case.source.name)


async def send(proxy: Proxy, request: RawRequest) -> Told:
    headers = [pair for pair in request.headers if pair[0].lower() != "content-length"]
    return await proxy.call(request.method, request.path, request.body, headers, key=None)


async def taken(received: Received) -> None:
    await received.answer(200, b"taken")


@pytest.mark.parametrize("case", CASES, ids=IDS)
async def test_a_resend_is_answered_from_the_store(autojump_clock: MockClock, case: Payload) -> None:
    async with proxying(autojump_clock, route_of(case), behaviour=taken, sources=SOURCES) as proxy:
        assert (await send(proxy, case.first)).body == b"taken"
        [got] = proxy.upstream.requests
        assert (got.method, got.target, got.body) == (case.first.method, case.first.path, case.first.body)
        elapsed_ms = 0
        for what, expect, request, at_ms in sorted(case.variants("resends"), key=lambda one: one[3]):
            assert expect == "repeat"
            await trio.sleep((at_ms - START_MS - elapsed_ms) / 1_000)
            elapsed_ms = at_ms - START_MS
            told = await send(proxy, request)
            assert (told.body, told.header("Idempotent-Replayed")) == (b"taken", ["true"]), what
        assert len(proxy.upstream.requests) == 1


@pytest.mark.parametrize("case", CASES, ids=IDS)
async def test_a_near_miss_is_another_call_or_refused(autojump_clock: MockClock, case: Payload) -> None:
    statuses = {"new": 200, "mismatch": 422, "invalid": 400}
    for what, expect, request, at_ms in case.variants("near_misses"):
        allowed = expect if isinstance(expect, list) else [expect]
        async with proxying(autojump_clock, route_of(case), behaviour=taken, sources=SOURCES) as proxy:
            await send(proxy, case.first)
            await trio.sleep((at_ms - START_MS) / 1_000)
            told = await send(proxy, request)
            assert told.status in {statuses[one] for one in allowed if one in statuses}, what
            assert not told.header("Idempotent-Replayed"), what
            assert len(proxy.upstream.requests) == (2 if told.status == 200 else 1), what


@pytest.mark.parametrize("case", CASES, ids=IDS)
async def test_no_secret_shows(autojump_clock: MockClock, case: Payload, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(received: Received) -> None:
        await received.stream.aclose()

    caplog.set_level(logging.DEBUG)
    async with proxying(autojump_clock, route_of(case), behaviour=broken, sources=SOURCES) as proxy:
        first, again = await send(proxy, case.first), await send(proxy, case.first)
        shown = [proxy.metrics(), caplog.text, first.body.decode(), again.body.decode()]
        shown += [repr(disk.entries) for disk in proxy.rig.disks]
        for secret in case.secrets:
            assert not [text for text in shown if secret in text]
