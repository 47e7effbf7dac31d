"""Holding a key for as long as a body of code runs: the centre of the client.

What becomes of the key when the body ends:

==============================  =====================  ===========================================================
the body                        before begin_effect    after begin_effect
==============================  =====================  ===========================================================
ends                            committed              committed
raises a kind of not_executed   given back             given back
raises anything else, is        given back             in doubt, with the name of the exception's type as the
cancelled                                              reason
loses its lease                 given back, LeaseLost  in doubt, LeaseLost (a body that ends all the same commits)
==============================  =====================  ===========================================================

"Given back" is a release for a first attempt. For a takeover it is not: an earlier attempt may have had the effect, and
after a release the next caller would not be told. So the lease is made to end at once, and the next attempt is a
takeover again, with the same operation_id. A body that found out that no earlier attempt had the effect says
``rule_out_earlier``; then a release it is.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import anyio

from idemactor.client.endings import Claim, Commit, Ending, GiveBack, LeaveInDoubt, clean_reason, is_all, reason_of
from idemactor.client.entering import HoldOptions, ask_for
from idemactor.client.errors import DuplicateError, LeaseLost, Refused
from idemactor.client.keeper import Keeper
from idemactor.client.leaving import Leaving
from idemactor.client.params import Acquisition, Headers, outcome_from
from idemactor.client.results import Completed, Outcome, Reserved
from idemactor.errors import Code

if TYPE_CHECKING:
    from idemactor.client.holding import Holding

_NOT_INSIDE: Final = "the hold is not entered, or was left already: this is for inside its `with`"


class Hold:
    """One key, held. Made by ``client.hold``; use it once, with ``async with``.

    Attributes:
        namespace: Where the key lives.
        key: What must not happen twice.
        protected: False where the body runs although nobody could be asked (``on_unavailable="open"``).
    """

    def __init__(self, client: Holding, acquisition: Acquisition, options: HoldOptions) -> None:
        self.namespace: str = acquisition.params["namespace"]
        self.key: str = acquisition.params["key"]
        self.protected = True
        self._client = client
        self._acquisition = acquisition
        self.options = options
        self._claim: Claim | None = None
        self._keeper: Keeper | None = None
        self._lost: anyio.Event | None = None
        self._reserved: Reserved | None = None
        self._completed: Completed | None = None
        self._outcome: Outcome | None = None
        self._ending: Ending | None = None
        self._operation_id: str | None = None
        self._entered = False
        self._inside = False
        self._effect_begun = False
        self._earlier_ruled_out = False

    # ---------------------------------------------------------------------------------------------------- for the body

    @property
    def completed(self) -> bool:
        """Whether it was done before: then there is nothing to do but to read ``outcome``."""
        return self._completed is not None

    @property
    def outcome(self) -> Outcome | None:
        """What the operation answered: when it was done before, or as set here."""
        return self._completed.outcome if self._completed is not None else self._outcome

    @property
    def takeover(self) -> bool:
        """Whether an earlier attempt may already have had the effect. Not known where unprotected."""
        return self._reserved is not None and self._reserved.takeover

    @property
    def operation_id(self) -> str:
        """The name of the operation, the same for every attempt: give it to whoever has the effect.

        Unprotected it is made here, since nobody could be asked.
        """
        if self._operation_id is None:
            raise RuntimeError(_NOT_INSIDE)
        return self._operation_id

    @property
    def token(self) -> int | None:
        """The fencing token; None where there is none (done before, or unprotected)."""
        return self._reserved.token if self._reserved is not None else None

    @property
    def attempt(self) -> int | None:
        """The number of this attempt, from 1; None where it is not known."""
        return self._reserved.attempt if self._reserved is not None else None

    @property
    def reserved(self) -> Reserved | None:
        """The grant, as the server gave it."""
        return self._reserved

    @property
    def lost(self) -> anyio.Event:
        """Set once the lease is lost."""
        if self._lost is None:
            self._lost = anyio.Event()
            if self._keeper is not None and self._keeper.lost:
                self._lost.set()
        return self._lost

    @property
    def effect_begun(self) -> bool:
        """Whether ``begin_effect`` was called."""
        return self._effect_begun

    def begin_effect(self) -> None:
        """From here on the effect may happen: what ends the body otherwise than well leaves the key in doubt.

        Raises:
            LeaseLost: The lease is lost: do not begin.
            DuplicateError: It was done before: do not begin.
            RuntimeError: The hold is not entered, or was left: so it is with the other methods of the body.
        """
        self._check_inside()
        if self._completed is not None:
            done = self._completed
            raise DuplicateError(
                Code.DUPLICATE,
                "the operation of this key was done before",
                operation_id=done.operation_id,
                committed_at=done.committed_at,
                expires_at=done.expires_at,
            )
        self._check_lease()
        self._effect_begun = True

    def check(self) -> None:
        """Raise LeaseLost if the lease is lost."""
        self._check_inside()
        self._check_lease()

    def _check_inside(self) -> None:
        if not self._inside:
            raise RuntimeError(_NOT_INSIDE)

    def _check_lease(self) -> None:
        if self._keeper is not None and self._keeper.is_lost():
            raise self._lease_lost(self._keeper)

    def set_outcome(self, *, status: int = 200, body: object = b"", headers: Headers | None = None) -> None:
        """What the operation answered: kept with the commit, given to every repeat.

        Args:
            status: 100 to 599.
            body: Bytes as they are, text as UTF-8, anything else as JSON.
            headers: Names with their values, or name and value pairs; for a body that is made JSON ``content-type`` is
                added where they are None.

        Raises:
            InvalidRequest: Status or headers are out of shape.
            TypeError: The body has no JSON form.
            ValueError: It has none because it holds a number that is infinite or none.
        """
        self._check_inside()
        self._outcome = outcome_from(status, body, headers)

    def rule_out_earlier(self) -> None:
        """No earlier attempt had the effect (somebody looked): what gives this attempt back may free the key."""
        self._check_inside()
        self._earlier_ruled_out = True

    def give_back(self, reason: str | None = None) -> None:
        """At the end of the body, commit nothing: it had no effect.

        Args:
            reason: Why, for people; what is too long is cut, control characters become blanks.

        Raises:
            TypeError: The reason is no text.
        """
        self._check_inside()
        self._ending = self._giving_back(clean_reason(reason))

    def leave_in_doubt(self, reason: str | None = None) -> None:
        """At the end of the body, commit nothing: nobody knows whether it had its effect.

        Args:
            reason: Why, for people; what is too long is cut, control characters become blanks.

        Raises:
            TypeError: The reason is no text.
        """
        self._check_inside()
        self._ending = LeaveInDoubt(clean_reason(reason))

    # ------------------------------------------------------------------------------------------- entering and leaving

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a hold is entered once: ask the client for another")
        self._client.check()
        self._entered = True
        try:
            await self._enter()
        except Refused:
            raise
        except BaseException:
            self._client._give_back(self._acquisition)
            raise
        # Nothing between the grant and here may be cancelled, or the grant would have no owner.
        if self._keeper is not None:
            self._keeper.start()
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        self._inside = True
        return self

    async def _enter(self) -> None:
        answer, asked_s = await ask_for(self._client, self._acquisition, self.options)
        if answer is None:
            self.protected = False
            self._operation_id = self._client.count_unprotected()
            return
        self._operation_id = answer.operation_id
        if isinstance(answer, Completed):
            self._completed = answer
        else:
            await self._trust(answer, asked_s)

    async def _trust(self, granted: Reserved, asked_s: float) -> None:
        """Keep the lease from here on. One that is no longer fresh is renewed before it is used."""
        self._reserved = granted
        self._claim = Claim(self.namespace, self.key, granted.token)
        client = self._client
        self._keeper = Keeper(self._claim, granted, asked_s, client.renewals(), client.ask, self._on_lost)
        await self._keeper.freshen(self.options.timeout_ms)
        self._check_lease()

    def _on_lost(self) -> None:
        if self._lost is not None:
            self._lost.set()
        if self._inside and self.options.on_lost == "cancel":
            self._scope.cancel()

    def _lease_lost(self, keeper: Keeper) -> LeaseLost:
        return LeaseLost(keeper.why, operation_id=self._operation_id, token=self.token, effect_begun=self._effect_begun)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._inside = False
        rest, caught = self._leave_scope(kind, error, trace)
        try:
            if self._completed is None:
                await self._leave(rest, caught)
        finally:
            if self._keeper is not None:
                self._keeper.stop()
        if rest is not None and rest is not error:
            raise rest
        return False

    def _leave_scope(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> tuple[BaseException | None, bool]:
        """What the body raised, without the cancellation that came from a lost lease; and whether there was one."""
        try:
            caught = bool(self._scope.__exit__(kind, error, trace))
        except BaseException as rest:  # A group of which the cancellation was only a part.
            return rest, False
        return (None, True) if caught and error is not None else (error, False)

    async def _leave(self, error: BaseException | None, lost: bool) -> None:
        """Tell the server what becomes of the key."""
        assert self._operation_id is not None
        leaving = Leaving(self._client, self._acquisition, self._claim, self._operation_id, self.options.timeout_ms)
        if lost:
            assert self._keeper is not None
            why = self._lease_lost(self._keeper)
            doubt = LeaveInDoubt(reason_of(why))
            await leaving.settle_shortly(doubt if self._effect_begun else self._giving_back(doubt.reason))
            raise why
        if error is not None:
            await leaving.settle_shortly(self._after(error), error)
        else:
            await leaving.finish(self._ending or Commit(self._outcome))

    def _after(self, error: BaseException) -> Ending:
        """What becomes of the key when the body raised ``error``."""
        if not self._effect_begun or is_all(error, self.options.not_executed):
            return self._giving_back(reason_of(error))
        return LeaveInDoubt(reason_of(error))

    def _giving_back(self, reason: str | None) -> GiveBack:
        return GiveBack(reason, keep_evidence=self.takeover and not self._earlier_ruled_out)
