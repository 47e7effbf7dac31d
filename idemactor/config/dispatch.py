"""``[namespaces.NAME.dispatch]``: where a namespace's intents go, read setting by setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from idemactor.config import kinds
from idemactor.config.gateway import read_statuses, read_success, read_text
from idemactor.config.kinds import Kind
from idemactor.config.section import Section
from idemactor.config.senders import secret_variables, shown_variable
from idemactor.core import limits as core_limits
from idemactor.core.policy import DispatchPolicy, OnFailure
from idemactor.dispatch import limits
from idemactor.dispatch.destination import PLACEHOLDER, Destination, Endpoint, Retry, StatusPage, parse_endpoint
from idemactor.gateway.proxy.routes import InvalidUpstream, Origin
from idemactor.gateway.verify import InvalidSecret, Scheme, Verify

_PUSHING: Final = (
    *("timeout_ms", "secret_env", "concurrency", "downstream_dedups"),
    *("status_url", "status_committed", "status_released", "status_after_ms"),
    *("success", "definite_failure", "not_executed"),
)
"""What is about requests to a URL, and would never be read without one."""
KEY_BYTES_MIN: Final = 24
KEY_BYTES_MAX: Final = 64
"""How long a key that signs may be (Standard Webhooks, "signature scheme")."""
_SPACING: Final = ("first_ms", "factor", "longest_ms")
_ASKING: Final = ("status_committed", "status_released", "status_after_ms")
_NOWHERE: Final = Endpoint(Origin("http", "", 0), "/")
_DEFAULT: Final = Destination(_NOWHERE)


def read_dispatch(section: Section, environment: Mapping[str, str]) -> tuple[DispatchPolicy, Destination | None]:
    """What the state table has to know, and where the relay delivers; None: services fetch their work.

    Args:
        section: The table ``dispatch`` of a namespace, empty where it is left out.
        environment: Where secrets are, by the names that ``secret_env`` gives.
    """
    default = DispatchPolicy()
    pushed = section.has("url")
    destination = _destination(section, environment) if pushed else None
    retry = destination.retry if destination is not None else _retry(section, pushed=False)
    policy = DispatchPolicy(
        pushed=pushed,
        recognised=destination.downstream_dedups if destination is not None else default.recognised,
        horizon_ms=retry.horizon_ms,
        intent_max_bytes=section.read(
            "intent_max_bytes", kinds.integer(1, core_limits.INTENT_BYTES_MAX), default.intent_max_bytes
        ),
        on_failure=destination.on_failure if destination is not None else _on_failure(section),
    )
    if not pushed:
        _report_what_nobody_reads(section)
    section.close()
    return policy, destination


def _destination(section: Section, environment: Mapping[str, str]) -> Destination:
    failing: tuple[int, ...] = section.read("definite_failure", _failures(), tuple(_DEFAULT.definite_failure))
    waiting: tuple[int, ...] = section.read("not_executed", _failures(), tuple(_DEFAULT.not_executed))
    destination = Destination(
        endpoint=section.read("url", Kind("a URL", _url, kinds.Lexis.TEXT), _NOWHERE),
        timeout_ms=section.read("timeout_ms", kinds.integer(1, limits.DELIVERY_MS_MAX), _DEFAULT.timeout_ms),
        secrets=_secrets(section, environment),
        concurrency=section.read("concurrency", kinds.integer(1, limits.CONCURRENCY_MAX), _DEFAULT.concurrency),
        downstream_dedups=section.read("downstream_dedups", kinds.boolean(), _DEFAULT.downstream_dedups),
        status=_status(section),
        retry=_retry(section, pushed=True),
        success=read_success(section),
        definite_failure=frozenset(failing),
        not_executed=frozenset(waiting),
        on_failure=_on_failure(section),
    )
    _report_twice(section, "definite_failure", failing, "not_executed", waiting)
    return destination


def _status(section: Section) -> StatusPage | None:
    kind = Kind("a list of statuses from 200 to 599", _any_statuses)
    default = StatusPage(_NOWHERE)
    committed: tuple[int, ...] = section.read("status_committed", kind, tuple(default.committed))
    released: tuple[int, ...] = section.read("status_released", kind, tuple(default.released))
    after = kinds.integer(0, limits.STATUS_AFTER_MS_MAX)
    after_ms = section.read("status_after_ms", after, default.after_ms)
    endpoint = section.read("status_url", Kind("a URL", _status_url, kinds.Lexis.TEXT), _NOWHERE)
    if not section.has("status_url"):
        for name in _ASKING:
            if section.has(name):
                section.report("has no effect without status_url: nobody is asked", name)
        return None
    _report_twice(section, "status_committed", committed, "status_released", released)
    return StatusPage(endpoint, frozenset(committed), frozenset(released), after_ms)


def _retry(section: Section, *, pushed: bool) -> Retry:
    table, default = section.section("retry"), Retry()
    time = kinds.integer(1, limits.RETRY_MS_MAX)
    retry = Retry(
        first_ms=table.read("first_ms", time, default.first_ms),
        factor=table.read("factor", kinds.number(1, limits.FACTOR_MAX), default.factor),
        longest_ms=table.read("longest_ms", time, default.longest_ms),
        horizon_ms=table.read("horizon_ms", kinds.integer(1, core_limits.HORIZON_MS_MAX), default.horizon_ms),
    )
    if retry.first_ms > retry.longest_ms:
        blamed = "first_ms" if table.has("first_ms") else "longest_ms"
        table.report(f"first_ms {retry.first_ms} is more than longest_ms {retry.longest_ms}", blamed)
    for name in _SPACING:
        if not pushed and table.has(name):
            table.report("has no effect without url: who fetches work says when it is shown again", name)
    table.close()
    return retry


def _on_failure(section: Section) -> OnFailure:
    return section.read("on_failure", kinds.choice(OnFailure), OnFailure.FAILED)


def _report_what_nobody_reads(section: Section) -> None:
    for name in _PUSHING:
        if section.has(name):
            section.report("has no effect without url: nothing is sent, services fetch their work", name)
        # It exists all the same: what follows must not call it unknown.
        section.know(name)


def _report_twice(section: Section, one: str, ones: tuple[int, ...], other: str, others: tuple[int, ...]) -> None:
    twice = sorted({*ones} & {*others})
    if twice:
        blamed = other if section.has(other) else one
        section.report(f"{twice[0]} is in {one} and in {other}", blamed)


def _secrets(section: Section, environment: Mapping[str, str]) -> tuple[bytes, ...]:
    """The keys that sign; a secret that cannot be had is reported, by the name of its variable alone."""
    names = section.read("secret_env", secret_variables(), ())
    keys: list[bytes] = []
    for name in names:
        secret = environment.get(name, "")
        if not secret:
            section.report(f"the environment variable {shown_variable(name)} is not set", "secret_env")
            continue
        try:
            [key] = Verify(Scheme.STANDARD_WEBHOOKS, (name,), (secret,)).keys
        except InvalidSecret as error:
            section.report(f"the environment variable {shown_variable(name)}: {error}", "secret_env")
            continue
        if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
            wrong = f"its key has {len(key)} bytes, and Standard Webhooks asks for {KEY_BYTES_MIN} to {KEY_BYTES_MAX}"
            way_out = 'make one with: echo "whsec_$(openssl rand -base64 32)"'
            section.report(f"the environment variable {shown_variable(name)}: {wrong}; {way_out}", "secret_env")
        keys.append(key)
    return tuple(keys)


# ---------------------------------------------------------------------------------------------------------------- kinds


def _url(value: object) -> Endpoint:
    text = read_text(value)
    if "{" in text or "}" in text:
        raise InvalidUpstream("has braces, and nothing is put in their place here")
    return parse_endpoint(text)


def _status_url(value: object) -> Endpoint:
    endpoint = parse_endpoint(read_text(value))
    if PLACEHOLDER not in endpoint.target:
        raise InvalidUpstream(f"has no {PLACEHOLDER} in its path or query: every operation would be the same")
    if "{" in endpoint.of("") or "}" in endpoint.of(""):
        raise InvalidUpstream(f"has braces beside {PLACEHOLDER}")
    return endpoint


def _failures() -> Kind[tuple[int, ...]]:
    return Kind("a list of statuses from 300 to 599", read_statuses)


def _any_statuses(value: object) -> tuple[int, ...]:
    return read_statuses(value, least=200)
