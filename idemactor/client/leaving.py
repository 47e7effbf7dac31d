"""Telling the server how a hold ended, and its caller what the server said."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from idemactor.client.endings import Claim, Commit, Ending, GiveBack, LeaveInDoubt, reason_of
from idemactor.client.errors import (
    CommitUnacknowledged,
    EndingUnacknowledged,
    Refused,
    StaleTokenError,
    UnknownKeyError,
)
from idemactor.client.params import Acquisition
from idemactor.client.settlement import Settlement
from idemactor.core.values import slotted

if TYPE_CHECKING:
    from idemactor.client.holding import Holding


@slotted
class Leaving:
    """The end of one hold.

    Attributes:
        claim: Whose attempt it was; None where the body ran unprotected.
        timeout_ms: How long the caller waits for the server to know.
    """

    client: Holding
    acquisition: Acquisition
    claim: Claim | None
    operation_id: str
    timeout_ms: int

    async def finish(self, ending: Ending) -> None:
        """The body ended well: commit, or what it asked for instead.

        Raises:
            Refused: The server did not take it.
            EndingUnacknowledged: Nobody knows whether the server knows.
        """
        if self.claim is None:
            await self.settle_shortly(ending)
            return
        settlement = await self.client.end_here(self.claim, ending, self.timeout_ms)
        error = settlement.error
        if settlement.over and error is None:
            return
        if isinstance(error, Refused):
            await self._refused(ending, error)
            return
        raise self._unacknowledged(ending) from error

    async def settle_shortly(self, ending: Ending, error: BaseException | None = None) -> None:
        """Tell the server although everything around may be cancelled; what takes longer goes on in the background."""
        if self.claim is None:
            # What did not happen need not be reported, but may have been reserved in the end.
            if not isinstance(ending, GiveBack) or self.acquisition.flight.may_have_acted:
                self._settlement(ending)
            return
        settlement = self._settlement(ending)
        await self.client.wait_shortly(settlement)
        if error is not None and not settlement.over:
            error.add_note("idemactor could not tell the server yet how this ended, and goes on trying")
        elif error is not None and settlement.error is not None:
            error.add_note(f"idemactor could not tell the server how this ended: {settlement.error}")

    def _settlement(self, ending: Ending) -> Settlement:
        settler = self.client._settling()
        if self.claim is not None:
            return settler.end(self.claim, ending)
        if isinstance(ending, GiveBack):
            return settler.give_back(self.acquisition)
        return settler.report(self.acquisition, ending, self.operation_id)

    async def _refused(self, ending: Ending, error: Refused) -> None:
        """The server did not take how this ended."""
        match ending:
            case GiveBack(keep_evidence=False) if isinstance(error, UnknownKeyError):
                return  # The key is free, as was asked for.
            case Commit() if not isinstance(error, StaleTokenError | UnknownKeyError):
                # Refused for itself, it leaves an effect that nobody may repeat unasked.
                await self.settle_shortly(LeaveInDoubt(f"the commit was refused: {reason_of(error)}"))
        raise error

    def _unacknowledged(self, ending: Ending) -> EndingUnacknowledged:
        token = self.claim.token if self.claim is not None else None
        match ending:
            case Commit(outcome):
                return CommitUnacknowledged(operation_id=self.operation_id, token=token, outcome=outcome)
            case GiveBack():
                detail = "the key was not given back, as far as is known: no answer came"
            case LeaveInDoubt():
                detail = "nobody was told that the key is in doubt, as far as is known: no answer came"
            case _:
                assert_never(ending)
        return EndingUnacknowledged(detail, operation_id=self.operation_id, token=token)
