"""The gateway and an exchange to try it on, in one command: python examples/webhook_gateway/demo.py"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
EXCHANGE: Final = os.environ.get("EXCHANGE_ADDRESS", "127.0.0.1:9100")


def main() -> int:
    """Run both until the gateway ends."""
    exchange = subprocess.Popen([sys.executable, HERE.parent / "fake_exchange.py", EXCHANGE])
    try:
        told = {**os.environ, "EXCHANGE_URL": f"http://{EXCHANGE}"}
        return subprocess.run([sys.executable, HERE / "gateway.py"], env=told, check=False).returncode
    except KeyboardInterrupt:
        return 0
    finally:
        exchange.kill()


if __name__ == "__main__":
    sys.exit(main())
