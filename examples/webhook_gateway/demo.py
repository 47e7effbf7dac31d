"""The gateway and an exchange to try it on, in one command: python examples/webhook_gateway/demo.py"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
EXCHANGE: Final = os.environ.get("EXCHANGE_ADDRESS", "127.0.0.1:9100")


def main() -> int:
    """Run both until the gateway ends, or somebody ends this: neither is left behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The handler of Ctrl-C: whoever ends this one alone means the others, too.
        signal.signal(number, signal.default_int_handler)
    # In a group of its own, Ctrl-C does not reach it: the gateway brings to an end what it has begun, and asks it.
    exchange = subprocess.Popen([sys.executable, HERE.parent / "fake_exchange.py", EXCHANGE], process_group=0)
    try:
        return run_gateway({**os.environ, "EXCHANGE_URL": f"http://{EXCHANGE}"})
    finally:
        exchange.kill()
        exchange.wait()


def run_gateway(told: Mapping[str, str]) -> int:
    """Its exit code; 0 where this process was told to end."""
    gateway = subprocess.Popen([sys.executable, HERE / "gateway.py"], env=told)
    try:
        return gateway.wait()
    except KeyboardInterrupt:
        gateway.terminate()
        gateway.wait()
        return 0
    finally:
        # Where it has not ended yet, somebody would not wait for it any longer.
        gateway.kill()


if __name__ == "__main__":
    sys.exit(main())
