"""Looks at the answers to what only operators may ask for, and passes them on."""

from __future__ import annotations

from dataclasses import dataclass

from idemactor.core.commands import Forget, Resolve
from idemactor.observability.audit import Audit
from idemactor.shard.mailbox import Answer, Envelope, Sink
from idemactor.wire.refusals import refusal_of


@dataclass(slots=True, eq=False)
class _Witness:
    """A sink that sees one command's answer before its own does."""

    sink: Sink
    command: Resolve | Forget
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
            if isinstance(command, Forget):
                self.audit.happened(self.who, "forget", result, command.identity, force=command.force or None)
            else:
                verdict = command.verdict.value
                self.audit.happened(self.who, "resolve", result, command.identity, verdict=verdict, token=command.token)
        self.sink.deliver(answers)


def audited(audit: Audit, who: str, envelope: Envelope) -> Envelope:
    """An envelope whose answer is noted, where it is an operator's."""
    command = envelope.command
    if isinstance(command, Resolve | Forget):
        envelope.sink = _Witness(envelope.sink, command, who, audit)
    return envelope


def told(answer: Answer) -> str:
    """The code of a refusal, else the name of the reply in lower case."""
    refusal = refusal_of(answer)
    return refusal.code.value if refusal is not None else type(answer).__name__.lower()
