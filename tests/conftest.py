"""What holds for every test."""

from __future__ import annotations

import signal

for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGTERM, signal.SIG_DFL),
):
    # Who runs the tests in the background, or under nohup, has them ignore signals, and so would all that they start.
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)
