"""Sources: named profiles of senders, which say how the key of a request is found and what it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from idemactor.errors import Code
from idemactor.gateway.normalise import Normaliser
from idemactor.gateway.plan import InvalidSource, Plan, plan_of
from idemactor.gateway.refs import Place
from idemactor.gateway.verify import SIGNED_IDS, Verify
from idemactor.gateway.words import Bucket, Format

__all__ = ["Answers", "Bucket", "Format", "InvalidSource", "Normaliser", "Recipe", "Source", "Verify"]

WINDOW_MS_DEFAULT: Final = 60_000
"""How long a derived key blocks from its first sighting (contract, 9)."""

Recipe = str | tuple[str, ...]
"""What an id is made of: one thing, or several as a tuple, all of which have to be there."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The HTTP status by which each result is told to this sender; a stored outcome that is replayed has its own."""

    completed: int = 200
    in_flight: int = 409
    in_doubt: int = 409
    mismatch: int = 422
    unavailable: int = 503

    def status_of(self, code: Code) -> int | None:
        """How a refusal with this code is told; None: the sender has no say in it."""
        match code:
            case Code.IN_FLIGHT:
                return self.in_flight
            case Code.IN_DOUBT:
                return self.in_doubt
            case Code.MISMATCH:
                return self.mismatch
            case Code.OVERLOADED | Code.UNAVAILABLE:
                return self.unavailable
            case _:
                return None


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of sender. What it names in a request is written as ``gateway/refs.py`` reads it; times in milliseconds.

    Attributes:
        name: What configuration and callers call it; part of every derived key.
        namespace: Where the gateway's own doors keep its keys.
        format: How bodies are read.
        pattern: For ``text``: the expression that the whole text matches; its named groups are the members.
        client_key: Whether the sender's ``Idempotency-Key`` and ``idempotencyKey`` count, before everything else;
            None: yes, but where the sender signs (``verify``) not the header, which no scheme signs.
        id: The source's own id, in order of preference.
        derive: What a key is made of where there is no id; all of it is required. ``body`` is the whole body.
        normalise: How what is named is normalised before it is used, in order.
        mode: What tells test from live, which never share a key: ``true`` (or ``test``) is test.
        bucket: How long a derived key stands for one operation.
        window_ms: With ``Bucket.WINDOW``: how long, from the first sighting.
        nonce: Part of a derived key where it is there: makes two intended twins two.
        exclude: What does not count in the fingerprint.
        headers: Header fields that do count in it; no others do.
        secrets: What reaches no key and no fingerprint.
        verify: How the sender proves who it is; None: it need not.
        retry_horizon_ms: How long after its first attempt the sender may try again; None: nobody knows.
        ttl_ms: How long a key that is not held by a window blocks, from its commit; None: as the namespace's setting
            says, and at least ``retry_horizon_ms``.
        answers: How each result is told to this sender.
        plan: All this made ready, for ``resolve``.

    Raises:
        InvalidSource: On construction.
    """

    name: str
    namespace: str = "default"
    format: Format = Format.AUTO
    pattern: str | None = None
    client_key: bool | None = None
    id: tuple[Recipe, ...] = ()
    derive: tuple[str, ...] = ()
    normalise: Mapping[str, tuple[Normaliser, ...]] = field(default_factory=dict)
    mode: str | None = None
    bucket: Bucket = Bucket.WINDOW
    window_ms: int = WINDOW_MS_DEFAULT
    nonce: str | None = None
    exclude: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    verify: Verify | None = None
    retry_horizon_ms: int | None = None
    ttl_ms: int | None = None
    answers: Answers = field(default_factory=Answers)

    plan: Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", plan_of(self))

    @property
    def reads_key_header(self) -> bool:
        """Whether the sender's ``Idempotency-Key`` counts."""
        return self.verify is None if self.client_key is None else self.client_key

    @property
    def reads_key_member(self) -> bool:
        """Whether the ``idempotencyKey`` of the body counts."""
        return self.client_key is not False

    @property
    def memories(self) -> Iterator[tuple[str, int]]:
        """How long its keys are remembered, milliseconds, and its own setting that says so, for each way to find one.

        Where it says nothing, ``Resolved.memory`` sees to it that nothing is forgotten before its sender is done.
        """
        windowed = bool(self.derive) and self.bucket is Bucket.WINDOW
        if self.ttl_ms is not None and (self.client_key is not False or self.id or not windowed):
            yield "ttl_ms", self.ttl_ms
        if windowed:
            yield "window_ms", self.window_ms

    @property
    def unsigned(self) -> Iterator[str]:
        """What its keys are made of that its sender, who signs, does not sign."""
        if self.verify is not None:
            signed = SIGNED_IDS[self.verify.scheme]
            for ref in self.plan.keyed:
                if ref.place in (Place.QUERY, Place.PATH) or (ref.place is Place.HEADER and ref.name not in signed):
                    yield ref.text

    @property
    def doubts(self) -> Iterator[str]:
        """What nobody can promise about it, a sentence each: for whoever runs it."""
        if self.retry_horizon_ms is None:
            yield "nobody knows how long its sender tries again: set retry_horizon_ms, or keep its keys for long enough"
        if self.derive and self.bucket is Bucket.MINUTE:
            yield "a resend in the next minute of the clock is another operation to it"
