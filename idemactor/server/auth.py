"""Who may call, and what (contract, section 10): bearer tokens to principals, principals to scopes.

Authentication fails closed. The order of refusals is fixed, so that none tells more than the caller may know: who
are you (401), is that a namespace's name at all (400), may you use it (403, whether or not it exists), is there one
(404).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from idemactor.core.keys import InvalidNamespace, check_namespace
from idemactor.core.policy import Policy
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.wire.requests import OPERATOR_OPS, Scope, Watch
from idemactor.wire.sourced import Resolver

ANONYMOUS: Final = "anonymous"
"""Who asks a server without credentials, in the audit log."""
TENANT_DEFAULT: Final = "default"
"""Whose keys those of a server without credentials are."""
ALL_NAMESPACES: Final = "*"
OPERATOR_CALLS: Final = OPERATOR_OPS | {"records", "incidents", "stuck", "acknowledge"}
"""What only operators may call, commands and others."""
TOKEN_CHARS_MAX: Final = 4_096
"""The longest bearer token that is looked at."""

_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*) *")
"""RFC 6750, section 2.1: the scheme, in any case (RFC 9110, section 11.1), and one token68."""


class Role(enum.StrEnum):
    """What the bearer of a token may do."""

    CALLER = "caller"
    OPERATOR = "operator"
    METRICS = "metrics"


class TokenEntry(Protocol):
    """One configured token, known by its digest alone."""

    @property
    def name(self) -> str:
        """What it is called where people read of it."""

    @property
    def sha256(self) -> bytes:
        """The SHA-256 of the token's UTF-8 bytes, 32 bytes."""

    @property
    def tenant(self) -> str:
        """Whose keys the bearer works on."""

    @property
    def namespaces(self) -> Sequence[str]:
        """Those the bearer may use; one that is ``*`` means all."""

    @property
    def role(self) -> str:
        """``caller``, ``operator`` or ``metrics``."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who proved who they are.

    Attributes:
        tenant: Whose keys they work on.
        namespaces: Those they may use; None: all.
        role: What they may do.
        scopes: What they may do where, for every existing namespace that they may use.
        who: The name of their token.
        sha256: The digest of their token; empty where none is needed.
    """

    tenant: str
    namespaces: frozenset[str] | None
    role: Role
    scopes: Mapping[str, Scope] = field(default_factory=dict, compare=False, repr=False)
    who: str = field(default=ANONYMOUS, compare=False)
    sha256: bytes = field(default=b"", compare=False, repr=False)

    @property
    def is_operator(self) -> bool:
        """Whether they may resolve, forget, list and see tokens."""
        return self.role is Role.OPERATOR

    @property
    def may_read_metrics(self) -> bool:
        """Whether ``/metrics`` is open to them."""
        return self.role is not Role.CALLER

    @property
    def sees_tenants(self) -> str | None:
        """Whose keys the metrics show them; None: everybody's, for who only reads metrics, or needs no token."""
        return self.tenant if self.role is Role.OPERATOR and self.sha256 else None


class Authenticator:
    """Knows every configured token's digest.

    Args:
        entries: The configured tokens; none: everyone is an operator of tenant ``default``.
        policies: The namespaces there are.
        resolver: Finds the keys of requests by their sources; None: there are no sources.
        watch: Is told of every call that became a command; None: nobody is.

    Attributes:
        epoch: How many times the tokens were replaced: whoever keeps a principal looks whether it is still one.
    """

    def __init__(
        self,
        entries: Iterable[TokenEntry],
        policies: Mapping[str, Policy],
        resolver: Resolver | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._policies = policies
        self._resolver = resolver
        self.watch = watch
        self.epoch = -1
        self.replace(entries)

    def replace(self, entries: Iterable[TokenEntry]) -> None:
        """From now on these are the tokens. Calls that were taken before are carried out all the same."""
        self.epoch += 1
        self._known = [(bytes(entry.sha256), self._principal_of(entry)) for entry in entries]
        everyone = self._principal(TENANT_DEFAULT, None, Role.OPERATOR, ANONYMOUS)
        self.anonymous: Principal | None = None if self._known else everyone

    def renewed(self, principal: Principal | None) -> Principal | None:
        """What the bearer of a token that was known is now; None: nobody any more.

        Nothing is guessed here, so that it need not take the same time for all.
        """
        if self.anonymous is not None or principal is None:
            return self.anonymous
        return next((found for known, found in self._known if known == principal.sha256), None)

    def authenticate(self, token: str) -> Principal | None:
        """Whose token this is; None: nobody's. Takes the same time whichever token it is."""
        if self.anonymous is not None:
            return self.anonymous
        if len(token) > TOKEN_CHARS_MAX:
            return None
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        found = None
        for known, principal in self._known:
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def is_ours(self, value: str) -> bool:
        """Whether a field's value is somebody's bearer token here, for whoever hands fields on to others."""
        match = _BEARER.fullmatch(value)
        return match is not None and self.anonymous is None and self.authenticate(match[1]) is not None

    def from_header(self, values: Sequence[str]) -> Principal:
        """The principal of an HTTP request.

        Args:
            values: Every value of the ``Authorization`` field, in order.

        Raises:
            RequestError: UNAUTHENTICATED: there is not exactly one bearer token, or it is nobody's.
        """
        if self.anonymous is not None:
            return self.anonymous
        match = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
        principal = self.authenticate(match[1]) if match else None
        if principal is None:
            raise unauthenticated()
        return principal

    def scope(self, principal: Principal | None, namespace: str, op: str) -> Scope:
        """What ``principal`` may do in ``namespace``; for ``op`` it is enough.

        Raises:
            RequestError: UNAUTHENTICATED, INVALID_REQUEST, FORBIDDEN or UNKNOWN_NAMESPACE, in this order.
        """
        if principal is None:
            raise unauthenticated()
        scope = principal.scopes.get(namespace)
        if scope is None or (op in OPERATOR_CALLS and not principal.is_operator):
            raise _refusal(principal, namespace, op)
        return scope

    def _principal_of(self, entry: TokenEntry) -> Principal:
        names = frozenset(entry.namespaces)
        granted = None if ALL_NAMESPACES in names else names
        return self._principal(entry.tenant, granted, Role(str(entry.role)), entry.name, bytes(entry.sha256))

    def _principal(
        self, tenant: str, namespaces: frozenset[str] | None, role: Role, who: str, sha256: bytes = b""
    ) -> Principal:
        scopes = {
            name: Scope(tenant, name, policy, role is Role.OPERATOR, self._resolver, self.watch, who)
            for name, policy in self._policies.items()
            if role is not Role.METRICS and (namespaces is None or name in namespaces)
        }
        return Principal(tenant, namespaces, role, scopes, who, sha256)


def unauthenticated() -> RequestError:
    """What somebody is told whose token is missing or unknown; it does not say which."""
    return RequestError(Code.UNAUTHENTICATED, "a valid bearer token is needed")


def forbidden(detail: str) -> RequestError:
    """What somebody is told who is known and may not do that."""
    return RequestError(Code.FORBIDDEN, detail)


def _refusal(principal: Principal, namespace: str, op: str) -> RequestError:
    try:
        check_namespace(namespace)
    except InvalidNamespace as error:
        return InvalidRequest(str(error), field="namespace")
    if principal.role is Role.METRICS:
        return forbidden("this token only reads metrics")
    if principal.namespaces is not None and namespace not in principal.namespaces:
        return forbidden("this token may not use this namespace")
    if op in OPERATOR_CALLS and not principal.is_operator:
        return forbidden("this call is for operators")
    return RequestError(Code.UNKNOWN_NAMESPACE, "there is no such namespace")
