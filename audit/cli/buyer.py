"""The buyer's view on one screen."""

from __future__ import annotations

from kvwitness.audit.cli.tables import Block, Prose, Table
from kvwitness.audit.overall.buyer import UNKNOWABLE, BuyersView, Question

SHOWN = 20
"""Requests to ask about that are shown in the table; the letter has all."""


def buyer_blocks(view: BuyersView) -> list[Block]:
    """The checklist, the vendor review, what cannot be known, and the questions to the provider."""
    count = len(view.ask)
    head = f"{count:,} request{'' if count == 1 else 's'} to ask the provider about."
    blocks: list[Block] = [
        Prose(head if count else "Nothing to ask the provider about.", heading=True),
        Prose(f"{view.counts['requests']:,} requests, {view.counts['answered']:,} answered with success."),
        _questions("What our own record says", view.checklist),
        _questions("Questions of a vendor review, by what was observed", view.vendor),
        Prose(f"What cannot be known from this side: {'; '.join(UNKNOWABLE)}."),
    ]
    if count:
        rows = [[one["request"], one["ts"], "; ".join(one["reasons"])] for one in view.ask[:SHOWN]]
        more = "" if count <= SHOWN else f": the first {SHOWN} of {count:,}"
        blocks.append(Table(["request", "received", "why"], rows, f"To ask about{more}"))
        blocks.append(Prose("\nReady to send:\n\n" + view.letter(), verbatim=True))
    return blocks


def _questions(title: str, questions: list[Question]) -> Table:
    rows = [[one.answer, one.question, one.because] for one in questions]
    return Table(["", "question", "because"], rows, title)
