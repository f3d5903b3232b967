"""Brings incidents into a store one by one and checks after each, in a time of its own; killed anywhere, it goes on.

python kill_driver.py STORE CONFIG INCIDENTS START
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from kvwitness.audit.alerts.check import check
from kvwitness.audit.alerts.config import load
from kvwitness.audit.alerts.lease import lease
from kvwitness.audit.alerts.ledger import Ledger
from kvwitness.audit.store import Store
from tests.alerts.support import ManualClock, over_limit, put


def main() -> None:
    folder, config, incidents, start = Path(sys.argv[1]), load(Path(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
    store = Store.create(folder, exist_ok=True)
    print("ready", flush=True)
    done = max(0, len(store.imports()) - 1)  # the last one may not have been checked
    clock = ManualClock((start + 300 * done) * 10**9)
    with lease(store, clock.now_ns()), Ledger.of(store) as ledger:
        for n in range(done, incidents):
            put(store, over_limit(n, 1, t0=start))
            assert check(store, config, clock.turn("5m"), ledger, jitter=random.Random(n)).failed is None
        for _ in range(3):  # what failed last may have to wait for its next try
            check(store, config, clock.turn("25h"), ledger, jitter=random.Random(0))


if __name__ == "__main__":
    main()
