"""What two workers say to each other on the connection between them: MessagePack values, one after the other.

Both ends are copies of one process, in a directory that is nobody else's: nothing here has to be defended against.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack

HELLO: Final = 0
"""(HELLO, worker): the first on every connection, from both sides: who this is, and that its shards are there."""
ASKED: Final = 1
"""(ASKED, id, shard, command) or (ASKED, id, shard, command, traceparent): carry this out; ids ascend."""
TOLD: Final = 2
"""(TOLD, id, answer)."""
LEFT: Final = 3
"""(LEFT, id): the caller of that waiting reserve was seen to leave."""
COUNTS: Final = 4
"""(COUNTS, ((tenant, namespace, keys), ...), whole): how many keys the sender's shards hold, where that has changed;
``whole``: there are no others."""
STANDING: Final = 5
"""(STANDING, shard, queue depth, quarantined, in memory): how a shard of the sender's stands."""
QUESTION: Final = 6
"""(QUESTION, id): what are your metrics?"""
REPORT: Final = 7
"""(REPORT, id, text): these."""

SETTLED: Final = 8
"""(SETTLED, worker): the sender is stopping, and its proxy has nothing under way any more."""

RUNG: Final = 9
"""(RUNG, namespace): there may be something in an outbox of the sender's shards."""

Message = tuple[Any, ...]


def packer() -> Callable[[Message], bytes]:
    """Makes the bytes of a message. Text may hold what no UTF-8 can: a lone surrogate of a header's."""
    pack: Callable[[Message], bytes] = msgpack.Packer(unicode_errors="surrogatepass").pack
    return pack


def unpacker() -> Any:
    """Takes bytes by ``feed`` and gives whole messages when iterated; arrays are tuples."""
    return msgpack.Unpacker(use_list=False, unicode_errors="surrogatepass", max_buffer_size=0)
