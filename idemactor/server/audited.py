"""Looks at the answers to what only operators may ask for, and passes them on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import assert_never

from idemactor.core.commands import Cancel, Forget, Resolve
from idemactor.observability.audit import Audit
from idemactor.shard.mailbox import Answer, Envelope, Sink
from idemactor.wire.refusals import refusal_of


@dataclass(slots=True, eq=False)
class _Witness:
    """A sink that sees one command's answer before its own does."""

    sink: Sink
    command: Resolve | Forget | Cancel
    who: str
    audit: Audit

    @property
    def closed(self) -> bool:
        """Whether the caller was seen to leave."""
        return self.sink.closed

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Note what came of it."""
        command = self.command
        for _, answer in answers:
            result = told(answer)
            note = partial(self.audit.happened, self.who)
            match command:
                case Forget():
                    note("forget", result, command.identity, force=command.force or None)
                case Cancel():
                    note("cancel", result, command.identity, operation_id=command.operation_id)
                case Resolve():
                    note("resolve", result, command.identity, verdict=command.verdict.value, token=command.token)
                case _:
                    assert_never(command)
        self.sink.deliver(answers)


def audited(audit: Audit, who: str, envelope: Envelope) -> Envelope:
    """An envelope whose answer is noted, where it is an operator's."""
    command = envelope.command
    if isinstance(command, Resolve | Forget | Cancel):
        envelope.sink = _Witness(envelope.sink, command, who, audit)
    return envelope


def told(answer: Answer) -> str:
    """The code of a refusal, else the name of the reply in lower case."""
    refusal = refusal_of(answer)
    return refusal.code.value if refusal is not None else type(answer).__name__.lower()
