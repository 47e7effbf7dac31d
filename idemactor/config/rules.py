"""What no single setting can break: who may reach which address, and settings that need one another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from idemactor.config.addresses import parse_address
from idemactor.config.gateway import check_routes, is_guarded
from idemactor.config.kinds import show
from idemactor.config.model import DoorSection, ServerConfig
from idemactor.config.tree import Problem, Table


def check(config: ServerConfig, tree: Table) -> Iterator[Problem]:
    """The problems between settings.

    ``tree`` says where they stand, and which were given: one that was given but wrong is already reported,
    and is not missed here a second time.
    """
    yield from _check_workers(config, tree)
    yield from _check_binds(config, tree)
    for name, door in _doors(config):
        yield from _check_reach(name, door, tree)
        yield from _check_tls(name, door, tree)
    yield from _check_tokens(config, tree)
    yield from _check_gateway(config, tree)
    yield from _check_sources(config, tree)


def _doors(config: ServerConfig) -> tuple[tuple[str, DoorSection], ...]:
    return ("http", config.http), ("rpc", config.rpc), ("gateway", config.gateway.door)


def _check_gateway(config: ServerConfig, tree: Table) -> Iterator[Problem]:
    for setting, text in check_routes(config.gateway, config.namespaces, config.sources):
        yield _problem(tree, setting, text)
    door = config.gateway.door
    exposed = any(not parse_address(text).is_loopback for text in door.bind)
    for number, route in enumerate(config.gateway.routes):
        if exposed and not door.insecure and not is_guarded(route, config.sources, has_tokens=bool(config.tokens)):
            yield _problem(
                tree,
                f"gateway.routes.{number}",
                "can be used from other machines by anybody: ask for tokens, or take a source that verifies"
                " signatures, or say gateway.insecure = true",
            )


def _check_workers(config: ServerConfig, tree: Table) -> Iterator[Problem]:
    shards, workers = config.server.shards, config.server.workers
    if shards is not None and workers > shards:
        yield _problem(tree, "server.workers", f"is {workers}, and there are {shards} shards: each worker needs one")


def _check_binds(config: ServerConfig, tree: Table) -> Iterator[Problem]:
    if not config.http.bind and not config.rpc.bind and not config.gateway.door.bind:
        yield _problem(tree, "http.bind", "is empty, and so is rpc.bind: nobody could reach the server")
    taken: dict[str, str] = {}
    for name, door in _doors(config):
        for text in door.bind:
            identity = parse_address(text).identity
            if identity is None:
                continue
            if identity in taken:
                yield _problem(tree, f"{name}.bind", f"{show(text)} is the same address as {taken[identity]}")
            taken.setdefault(identity, f"{show(text)} of {name}.bind")


def _check_reach(name: str, door: DoorSection, tree: Table) -> Iterator[Problem]:
    """Section 10 of the contract: nothing beyond this machine without credentials, or without TLS."""
    tokens = tree.find(("auth", "tokens"))
    has_credentials = isinstance(tokens, Table) and bool(tokens.members)
    for text in door.bind:
        if parse_address(text).is_loopback:
            continue
        exposed = f"{show(text)} can be reached by other machines, and "
        if not has_credentials and name == "gateway":
            continue  # Webhooks may prove who sends them by signatures: every route is looked at by itself.
        if not has_credentials:
            yield _problem(
                tree,
                f"{name}.bind",
                f"{exposed}no credentials are configured: add [auth.tokens.NAME], "
                "or bind to 127.0.0.1, [::1], localhost or unix:PATH",
            )
        elif not _given(tree, f"{name}.tls_cert") and not door.insecure:
            yield _problem(
                tree,
                f"{name}.bind",
                f"{exposed}tokens would cross the network in clear text: "
                f"set {name}.tls_cert and {name}.tls_key, or say {name}.insecure = true",
            )


def _check_tls(name: str, door: DoorSection, tree: Table) -> Iterator[Problem]:
    for setting, needed in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("client_ca", "tls_cert")):
        if _given(tree, f"{name}.{setting}") and not _given(tree, f"{name}.{needed}"):
            yield _problem(tree, f"{name}.{setting}", f"needs {name}.{needed} beside it")
    files = {"tls_cert": door.tls_cert, "tls_key": door.tls_key, "client_ca": door.client_ca}
    for setting, path in files.items():
        if path is not None and (reason := _unreadable(path)):
            yield _problem(tree, f"{name}.{setting}", f"{show(str(path))} cannot be read: {reason}")


def _unreadable(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _check_tokens(config: ServerConfig, tree: Table) -> Iterator[Problem]:
    seen: dict[bytes, str] = {}
    for token in config.tokens:
        where = f"auth.tokens.{token.name}"
        if token.sha256 in seen:
            yield _problem(tree, f"{where}.sha256", f"is that of auth.tokens.{seen[token.sha256]}, too")
        if token.sha256:
            seen.setdefault(token.sha256, token.name)
        for namespace in token.namespaces:
            if namespace == "*" and len(token.namespaces) > 1:
                yield _problem(tree, f"{where}.namespaces", '"*" is all of them and stands alone')
            if namespace != "*" and namespace not in config.namespaces:
                known = ", ".join(sorted(config.namespaces))
                yield _problem(tree, f"{where}.namespaces", f'there is no namespace "{namespace}"; there are {known}')


def _check_sources(config: ServerConfig, tree: Table) -> Iterator[Problem]:
    """A source has a namespace, and a memory that is as long as its sender's (the shipped ones are seen to here)."""
    for name, source in config.sources.items():
        where = f"sources.{name}"
        if not _given(tree, where):
            continue
        if source.namespace not in config.namespaces:
            known = ", ".join(sorted(config.namespaces))
            yield _problem(tree, f"{where}.namespace", f'there is no namespace "{source.namespace}"; there are {known}')
            continue
        horizon_ms = source.retry_horizon_ms
        for setting, memory_ms in source.memories:
            if horizon_ms is not None and memory_ms < horizon_ms:
                given = ("retry_horizon_ms", setting)
                yield _problem(
                    tree,
                    next((f"{where}.{one}" for one in given if _given(tree, f"{where}.{one}")), where),
                    f"its sender may try again for {horizon_ms} ms, and {setting} remembers for {memory_ms} ms only:"
                    " a late resend would be taken for another operation",
                )


def _given(tree: Table, setting: str) -> bool:
    return tree.find(tuple(setting.split("."))) is not None


def _problem(tree: Table, setting: str, text: str) -> Problem:
    """A problem of ``setting``, placed where it stands or else at the nearest table that is there."""
    path = tuple(setting.split("."))
    found = next(at for end in range(len(path), -1, -1) if (at := tree.find(path[:end])) is not None)
    return Problem(found.origin, setting, text)
