"""Records what a pair of real SGLang servers does, as a trace, and says whose content was read, by the simplest means.

    tests/engines/run sglang --python tests/engines/sglang/record.py \\
        audit/scenarios/recorded/sglang-0519-placeholder.jsonl

The second part uses nothing of the audit: it goes through the lines once and remembers who wrote each offset of each
page last. That is what `kvwitness demo` is held against.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvwitness.audit.store import Store
from kvwitness.audit.trace.writer import write_jsonl
from kvwitness.collectors.ring_tail import Tail
from tests.engines.sglang.pair import PAGE_TOKENS, Pair
from tests.engines.sglang.traffic import Gateway, healthy, oversize


def record(work: Path) -> list[str]:
    """Run both servers, with rings in `work`, and send what leads to the bug twice; what was answered, as lines."""
    rings = work / "rings"
    rings.mkdir()
    with Pair(work, rings) as pair:
        gateway = Gateway(pair, rings)
        healthy(gateway)
        oversize(gateway, "t-cedar", 600)
        healthy(gateway, 2)
        oversize(gateway, "t-ash", 560)
        healthy(gateway, 2)
    return [
        f"{one.name} of {one.tenant}, {one.tokens} tokens: "
        f"prefill {one.prefill.status} for {one.prefill.prompt_tokens}, "
        f"decode {one.decode.status} for {one.decode.prompt_tokens}"
        for one in gateway.sent
    ]


def written(work: Path, out: Path) -> int:
    """Take the rings into a store, and write that as a trace; the number of its events."""
    store = Store.create(work / "store")
    with Tail(work / "rings", store) as tail:
        tail.once()
    events = store.events().sort("time_ns", "source", "seq").collect().to_arrow()
    with out.open("wb") as file:
        return write_jsonl(events, file)


def foreign_reads(lines: Iterable[str]) -> dict[str, set[str]]:
    """Request -> tenants, not its own, whose content stood where it read."""
    tenants: dict[str, str] = {}
    last: defaultdict[tuple[str, int], list[str | None]] = defaultdict(lambda: [None] * PAGE_TOKENS)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for event in map(json.loads, lines):
        kind, who = event["event"], event.get("request")
        if kind == "request.received":
            tenants[who] = event["tenant"]
        if kind not in ("page.write", "page.read") or event.get("phase") == "begin":
            continue
        for key, offset in _places(event):
            writer = last[key][offset]
            if kind == "page.write":
                last[key][offset] = who
            elif writer is not None and tenants[writer] != tenants[who]:
                found[who].add(tenants[writer])
    return dict(found)


def _places(event: dict[str, Any]) -> Iterable[tuple[tuple[str, int], int]]:
    """Page and offset of each position that an event covers."""
    pages = [p for item in event["pages"] for p in (range(item[0], item[1] + 1) if isinstance(item, list) else (item,))]
    first, end = event["tok"]
    for position in range(first, end):
        yield (event["pool"], pages[position // PAGE_TOKENS - first // PAGE_TOKENS]), position % PAGE_TOKENS


def main() -> None:
    """Record into the file that is named."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        for line in record(Path(work)):
            print(line)
        print(f"{written(Path(work), out):,} events")
    with out.open(encoding="utf-8") as lines:
        for request, whose in sorted(foreign_reads(lines).items()):
            print(f"{request} read content of {', '.join(sorted(whose))}")


if __name__ == "__main__":
    main()
