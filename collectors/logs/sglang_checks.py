"""What SGLang's own checks of KV pages write into its log: the KV canary, and the checksum between prefill and decode.

The canary's line is the same in SGLang 0.5.16 to 0.5.23, whose own tests rely on it; the checksum's is that of 0.5.21
and 0.5.23. The canary (`--kv-canary log` or `raise`) names a slot of the pool and a position, and no request; the
checksum (`--disaggregation-enable-kv-checksum`) a request and the room of its transfer, and no pages. So neither is a
`content.digest`, which is of pages: each becomes a `shadow.finding` with the check as its `path`, and the rule
`engine-check-failed` leaves what they name unproven. Nor is a mismatch a `transfer.failed`: the time of a log line is
too coarse to say whether it was before other ends.

Token ids, and the canary's hashes, which have no key and give away the tokens to whoever guesses them, are dropped.
"""

from __future__ import annotations

import re
from typing import Any

from kvwitness.audit.trace.report import ImportReport, bump

SIGNS = (b"kv_canary violation: launch_tag=", b"KV checksum mismatch req=", b"KV checksum mismatch on a peer rank req=")
"""What a line of theirs has in it."""
_CANARY = re.compile(r"kv_canary violation: launch_tag=(\S+) fail_reason=(\S+) slot_idx=(-?\d+) position=(-?\d+)\b")
_DROPPED = re.compile(r"\b(stored_token|expected_token|stored_chain_hash|expected_aux)=")
_CHECKSUM = re.compile(
    r"KV checksum mismatch( on a peer rank)? req=(\S+) bootstrap_room=(\S+)"
    r"(?: expected=(0x[0-9a-fA-F]+) got=(0x[0-9a-fA-F]+))?"
)
_MORE = re.compile(r"^\s*total_violations=(\d+) ring_overflow=True\b")
_SKIPPED = "KV checksum skipped: prefill layout signature"


def finding(text: str, number: int, report: ImportReport) -> dict[str, Any] | None:
    """The fields of a finding that the line tells, without source and time; None where it tells none.

    What limits the checks is noted in `report` under the line's number, what is dropped is counted there.
    """
    if canary := _CANARY.search(text):
        return _canary(canary, text, report)
    if checksum := _CHECKSUM.search(text):
        return _checksum(checksum)
    if _MORE.search(text):
        report.note_once(number, "SGLang's KV canary found more than it lists: its ring was full")
    elif _SKIPPED in text:
        report.note_once(number, "SGLang compares no checksums with a prefill server whose pages lie otherwise")
    return None


def _canary(line: re.Match[str], text: str, report: ImportReport) -> dict[str, Any]:
    for dropped in _DROPPED.finditer(text):
        bump(report.dropped_content, dropped[1])
    slot, position = int(line[3]), int(line[4])
    fields: dict[str, Any] = {"reason": f"SGLang's KV canary: {line[2]}", "path": "kv_canary"}
    fields |= {"launch": line[1], "slot_index": slot}
    if position >= 0:
        fields["tok"] = [position, position + 1]
    return fields


def _checksum(line: re.Match[str]) -> dict[str, Any]:
    where = " (on another rank)" if line[1] else ""
    reason = f"SGLang's checksum: what arrived is not what prefill sent{where}"
    fields = {"request": line[2], "reason": reason, "path": "kv_checksum"}
    if line[3] != "None":
        fields["transfer"] = line[3]
    if line[4]:
        fields |= {"sent_digest": line[4], "received_digest": line[5]}
    return fields
