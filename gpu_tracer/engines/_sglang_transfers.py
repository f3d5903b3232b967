"""Pages that SGLang's prefill process sends to its decode process, seen from both sides.

They meet in a bootstrap room, whose number is the transfer's id. Prefill knows what is sent and where to: its transfer
engine was told the destination pages. Decode knows for which pages it waits, and when it is told that all has come, but
not how much: SGLang compares no lengths (as of 0.5.23).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvwitness.gpu_tracer.engines._sglang_view import Seen, View, committed, over, peer_pool

_FAILED, _SUCCESS = 0, 4
"""Of `sglang.srt.disaggregation.base.conn.KVPoll`."""


@dataclass(slots=True)
class Piece:
    """A run of pages on its way to one decode process."""

    pool: str
    pages: list[int]
    tok: tuple[int, int]


@dataclass(slots=True)
class Sending:
    """What has been handed to the transfer engine for one room."""

    seen: Seen
    pieces: list[Piece] = field(default_factory=list)
    slots: dict[str, str] = field(default_factory=dict)
    """Slot for the metadata that goes along -> pool of its process."""
    tokens: int = 0
    """Positions from 0 that are covered once all has arrived."""


class Transfers:
    """The rooms of one process."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.sends: dict[int, Sending] = {}
        self.chunk: tuple[Seen, int, int] | None = None
        """Request, first position and end of the prompt of the chunk that is being handed over."""

    # -- the sender's side: prefill ------------------------------------------------------------------------

    def chunk_begins(self, request: Any) -> None:
        """The engine is about to hand over what has been computed since the last time."""
        view, seen = self.view, self.view.find(request)
        self.chunk = None
        if seen is None:
            return
        prompt = len(request.origin_input_ids)
        view.sync(seen, request, min(prompt, committed(request)))
        self.chunk = (seen, int(request.start_send_idx), prompt)

    def handed_over(self, sender: Any, result: Any) -> None:
        """Pages go to the transfer engine: which of the sender's, and where to."""
        count, where = len(result[0]), result[1]
        if self.chunk is None or result[3]:
            return
        seen, start, prompt = self.chunk
        view, room = self.view, int(sender.bootstrap_room)
        size = view.page_tokens
        first = start // size
        end = min(prompt, (first + count) * size)
        self.chunk = (seen, (first + count) * size, prompt)  # a chunk may be handed over in several parts
        sending = self.sends.setdefault(room, Sending(seen))
        sending.tokens = max(sending.tokens, end)
        if isinstance(where, slice):
            picked: Any = where
        else:  # some ranks send some of the pages only
            view.gap("a transfer is spread over ranks")
            return
        for peer, info in dict(sender.kv_mgr.transfer_infos.get(room, {})).items():
            if getattr(info, "is_dummy", False):
                continue
            announced = [int(page) for page in info.dst_kv_indices]
            piece = Piece(peer_pool(str(peer)), announced[picked], (start, end))
            sending.pieces.append(piece)
            sending.slots[f"{piece.pool}/aux/{info.dst_aux_index}"] = piece.pool
            view.tracer.transfer_begin(
                str(room), seen.name, src_pool=view.pool, src_pages=seen.table[first : first + count],
                dst_pool=piece.pool, dst_pages=piece.pages, dst_announced=announced, tokens=end, tok=piece.tok,
                writers=[0],
            )  # fmt: skip
            view.tracer.write(
                piece.pool, piece.pages, seen.name, tok=piece.tok, op="transfer", phase="begin", transfer=str(room)
            )

    def concluded(self, room: int, status: int) -> None:
        """The transfer engine is done with a room, and decode is about to be told. Called in its threads too."""
        if status not in (_FAILED, _SUCCESS):
            return
        sending = self.sends.pop(room, None)
        if sending is None:
            return
        tracer, seen, transfer = self.view.tracer, sending.seen, str(room)
        if status == _FAILED:
            tracer.transfer_failed(transfer, request=seen.name, observer="sender")
            return
        pages = 0
        for piece in sending.pieces:
            tracer.write(
                piece.pool, piece.pages, seen.name, tok=piece.tok, op="transfer", phase="end", transfer=transfer
            )
            pages += len(piece.pages)
        for slot in sending.slots:
            tracer.aux_write(slot, seen.name, rank=0, transfer=transfer)
        tracer.transfer_done(transfer, request=seen.name, observer="sender", tokens=sending.tokens, pages_ok=pages)

    # -- the receiver's side: decode -----------------------------------------------------------------------

    def announced(self, request: Any) -> None:
        """Decode has made pages ready for a request, and is about to tell prefill which."""
        view, seen = self.view, self.view.find(request)
        if seen is None:
            return
        view.sync(seen, request, committed(request))
        if seen.preempted:
            seen.preempted = False
            view.tracer.request_resumed(seen.name)
            return
        seen.receiving = True
        view.tracer.transfer_begin(self.name(seen), seen.name, dst_pool=view.pool, dst_announced=seen.table)

    def committed(self, request: Any, slot: int | None) -> None:
        """Decode takes a transfer as complete, or has found its metadata to be another's."""
        seen = self.view.find(request)
        if seen is None or not seen.receiving:
            return
        if over(request):
            self.failed(seen)
            return
        seen.receiving = False
        tracer, transfer = self.view.tracer, self.name(seen)
        if slot is not None and seen.transfer is not None:
            tracer.aux_read(f"{self.view.pool}/aux/{slot}", seen.name, rank=0, transfer=transfer)
        tracer.transfer_done(transfer, request=seen.name, observer="receiver")

    def failed(self, seen: Seen) -> None:
        """Decode gives a transfer up."""
        seen.receiving = False
        self.view.tracer.transfer_failed(self.name(seen), request=seen.name, observer="receiver")

    def name(self, seen: Seen) -> str:
        """Id of a request's transfer; the `fake` backend has no rooms."""
        return seen.transfer or f"{self.view.pool}/{seen.name}"
