"""Makes the configuration of the merged tree: every section, setting by setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from idemactor.config import kinds, model, senders
from idemactor.config.addresses import parse_address
from idemactor.config.dispatch import read_dispatch
from idemactor.config.encryption import encryption_keys
from idemactor.config.gateway import build_gateway
from idemactor.config.section import Section
from idemactor.config.tree import Problem, Table
from idemactor.core import limits
from idemactor.core.fingerprint import FingerprintRule, parse_pointer
from idemactor.core.policy import DispatchPolicy, OnDoubt, OnDuplicate, OnLeaseExpiry, OnUnavailable, Policy
from idemactor.dispatch.destination import Destination
from idemactor.server.auth import Role

UNAVAILABLE_AFTER_MS_MAX: Final = limits.DAY_MS
RECORDS_MAX: Final = 1_000_000_000

_DEFAULT_POLICY: Final = Policy()
_POINTERS: Final = "JSON Pointers (RFC 6901)"


def build(tree: Table, problems: list[Problem], environment: Mapping[str, str]) -> model.ServerConfig:
    """The configuration in ``tree``; where it is wrong, ``problems`` grows and a default stands in.

    Args:
        tree: What all sources say, merged.
        problems: What is wrong is added here.
        environment: Where the secrets of senders and destinations are, by the names that the settings give.
    """
    root = Section(tree, "", problems)
    tokens = _tokens(root.section("auth"))
    destinations: dict[str, Destination] = {}
    config = model.ServerConfig(
        server=_server(root.section("server"), environment),
        http=_door(root.section("http"), model.HTTP_BIND_DEFAULT),
        rpc=_door(root.section("rpc"), model.RPC_BIND_DEFAULT),
        tokens=tokens,
        namespaces=_namespaces(root.section("namespaces"), environment, destinations),
        log=_log(root.section("log")),
        telemetry=_telemetry(root.section("telemetry")),
        gateway=_gateway(root.section("gateway"), has_tokens=bool(tokens)),
        sources=senders.sources(root.section("sources"), environment),
        destinations=destinations,
    )
    root.close()
    return config


def _server(section: Section, environment: Mapping[str, str]) -> model.ServerSection:
    default = model.ServerSection()
    backstep = kinds.integer(0, model.CLOCK_BACKSTEP_MS_MAX)
    evict_after = kinds.integer(model.EVICT_AFTER_MS_MIN, model.EVICT_AFTER_MS_MAX)
    mailbox = kinds.integer(limits.MAILBOX_COMMANDS_MIN, model.MAILBOX_MAX)
    server = model.ServerSection(
        data_dir=section.read("data_dir", kinds.path(), default.data_dir),
        shards=section.read("shards", kinds.integer(1, model.SHARDS_MAX), None),
        durability=section.read("durability", kinds.choice(model.Durability), default.durability),
        clock_backstep_max_ms=section.read("clock_backstep_max_ms", backstep, default.clock_backstep_max_ms),
        evict_after_ms=section.read("evict_after_ms", evict_after, default.evict_after_ms),
        mailbox_max=section.read("mailbox_max", mailbox, default.mailbox_max),
        queue_ms=section.read("queue_ms", kinds.integer(model.QUEUE_MS_MIN, model.QUEUE_MS_MAX), default.queue_ms),
        workers=section.read("workers", kinds.integer(1, model.WORKERS_MAX), default.workers),
        page_checksums=section.read("page_checksums", kinds.boolean(), None),
        encryption_keys=encryption_keys(section, environment),
        drain_ms=section.read("drain_ms", kinds.integer(model.DRAIN_MS_MIN, model.DRAIN_MS_MAX), default.drain_ms),
        hang_ms=section.read("hang_ms", kinds.integer(model.HANG_MS_MIN, model.HANG_MS_MAX), default.hang_ms),
    )
    section.close()
    return server


def _door(section: Section, bind_default: tuple[str, ...]) -> model.DoorSection:
    door = _door_settings(section, bind_default)
    section.close()
    return door


def _gateway(section: Section, *, has_tokens: bool) -> model.GatewaySection:
    return build_gateway(section, _door_settings(section, ()), has_tokens=has_tokens)


def _door_settings(section: Section, bind_default: tuple[str, ...]) -> model.DoorSection:
    bind = kinds.texts('addresses, "host:port" or "unix:path"', parse_address)
    return model.DoorSection(
        bind=section.read("bind", bind, bind_default),
        tls_cert=section.read("tls_cert", kinds.path(), None),
        tls_key=section.read("tls_key", kinds.path(), None),
        client_ca=section.read("client_ca", kinds.path(), None),
        insecure=section.read("insecure", kinds.boolean(), False),
    )


def _tokens(section: Section) -> tuple[model.TokenEntry, ...]:
    tokens = section.section("tokens")
    entries = tuple(_token(name, below) for name, below in tokens.named_sections())
    section.close()
    return entries


def _token(name: str, section: Section) -> model.TokenEntry:
    role = section.require("role", kinds.choice(Role), Role.METRICS)
    # Who only reads metrics touches no namespace; everybody else is told which ones.
    read = section.read if role is Role.METRICS else section.require
    granted = kinds.texts('namespaces, or ["*"] for all of them', _check_namespace)
    entry = model.TokenEntry(
        name=name,
        sha256=section.require("sha256", kinds.sha256(), b""),
        tenant=section.require("tenant", kinds.name(), ""),
        namespaces=read("namespaces", granted, ()),
        role=role,
    )
    section.close()
    return entry


def _check_namespace(text: str) -> None:
    if text != "*" and not kinds.is_name(text):
        raise ValueError(f"is no name: it must be {kinds.NAME_ALLOWED}")


def _namespaces(
    section: Section, environment: Mapping[str, str], destinations: dict[str, Destination]
) -> dict[str, Policy]:
    """The policies; where the relay delivers to goes into ``destinations``."""
    policies = {}
    for name, below in section.named_sections():
        dispatch, destination = read_dispatch(below.section("dispatch"), environment)
        if destination is not None:
            destinations[name] = destination
        policies[name] = _policy(below, dispatch)
    return policies or {"default": Policy()}


def _policy(section: Section, dispatch: DispatchPolicy) -> Policy:
    default = _DEFAULT_POLICY
    lease = kinds.integer(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)
    ttl = kinds.integer(limits.TTL_MS_MIN, limits.TTL_MS_MAX)
    outcome = kinds.integer(0, limits.OUTCOME_BYTES_MAX)
    unavailable = kinds.integer(0, UNAVAILABLE_AFTER_MS_MAX)
    policy = Policy(
        lease_ms=section.read("lease_ms", lease, default.lease_ms),
        ttl_ms=section.read("ttl_ms", ttl, default.ttl_ms),
        on_lease_expiry=section.read("on_lease_expiry", kinds.choice(OnLeaseExpiry), default.on_lease_expiry),
        on_doubt=section.read("on_doubt", kinds.choice(OnDoubt), default.on_doubt),
        on_duplicate=section.read("on_duplicate", kinds.choice(OnDuplicate), default.on_duplicate),
        on_unavailable=section.read("on_unavailable", kinds.choice(OnUnavailable), default.on_unavailable),
        unresolved_ttl_ms=section.read("unresolved_ttl_ms", ttl, default.unresolved_ttl_ms),
        outcome_max_bytes=section.read("outcome_max_bytes", outcome, default.outcome_max_bytes),
        records_max=section.read("records_max", kinds.integer(1, RECORDS_MAX), default.records_max),
        lease_total_max_ms=section.read("lease_total_max_ms", lease, default.lease_total_max_ms),
        unavailable_after_ms=section.read("unavailable_after_ms", unavailable, default.unavailable_after_ms),
        fingerprint=_fingerprint(section.section("fingerprint")),
        dispatch=dispatch,
    )
    if policy.lease_ms > policy.lease_total_max_ms:
        blamed = "lease_ms" if section.has("lease_ms") else "lease_total_max_ms"
        section.report(
            f"lease_ms {policy.lease_ms} is more than lease_total_max_ms {policy.lease_total_max_ms}", blamed
        )
    section.close()
    return policy


def _fingerprint(section: Section) -> FingerprintRule:
    included = kinds.texts(_POINTERS, parse_pointer)
    # The rule itself knows what else an exclusion must not be.
    excluded = kinds.texts(_POINTERS, lambda text: FingerprintRule(exclude=(text,)))
    rule = FingerprintRule(
        required=section.read("required", kinds.boolean(), False),
        include=section.read("include", included, ()),
        exclude=section.read("exclude", excluded, ()),
    )
    section.close()
    return rule


def _log(section: Section) -> model.LogSection:
    default = model.LogSection()
    log = model.LogSection(
        level=section.read("level", kinds.choice(model.LogLevel), default.level),
        payloads=section.read("payloads", kinds.boolean(), default.payloads),
        audit_file=section.read("audit_file", kinds.path(), None),
    )
    section.close()
    return log


def _telemetry(section: Section) -> model.TelemetrySection:
    default = model.TelemetrySection()
    interval = kinds.integer(model.TELEMETRY_MS_MIN, model.TELEMETRY_MS_MAX)
    telemetry = model.TelemetrySection(
        endpoint=section.read("endpoint", kinds.http_url(), default.endpoint),
        service_name=section.read("service_name", kinds.words(), default.service_name),
        sample_percent=section.read("sample_percent", kinds.integer(0, 100), default.sample_percent),
        interval_ms=section.read("interval_ms", interval, default.interval_ms),
    )
    section.close()
    return telemetry
