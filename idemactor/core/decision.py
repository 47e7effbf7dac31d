"""What a decision is given that only a shell can have, and what it comes to. Pure."""

from __future__ import annotations

from idemactor.core.record import Entry, Incident
from idemactor.core.replies import Reply
from idemactor.core.values import slotted


@slotted
class Fresh:
    """What a grant uses up.

    Attributes:
        token: Above every token that this shard ever granted.
        entropy: Random bits for an operation id, see ``ids.ENTROPY_BITS``.
        room: Whether the tenant may have one more key in this namespace.
        seq: A place in line for what enters the outbox, see ``Delivery.seq``; 0 where nothing may enter any more.
    """

    token: int
    entropy: int
    room: bool
    seq: int = 0


@slotted
class Decision:
    """What one command did.

    Attributes:
        reply: The answer, which leaves once ``entry`` is durable.
        entry: What the shard holds of the key from now on; meaningful where ``changed``.
        changed: Whether ``entry`` differs from what was given.
        granted: Whether ``Fresh`` was used up.
        incident: Evidence that something may have happened twice.
        rule_changed: Whether a fingerprint was set aside because it was made under another rule.
    """

    reply: Reply
    entry: Entry | None = None
    changed: bool = False
    granted: bool = False
    incident: Incident | None = None
    rule_changed: bool = False
