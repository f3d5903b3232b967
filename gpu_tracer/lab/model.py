"""A transformer of two layers whose weights are made by hand, so that what it does can be said in a sentence.

It goes on with what followed, anywhere in its context, on the characters that it has just seen (an induction head):

- Layer 0 has three heads. They look one, two and three positions back, and note which characters stand there.
- Layer 1 has one head. It looks for positions whose *preceding* characters are the present one and the two before it,
  the nearest counting most, and brings the character that stands there; that is the next one.

So it answers from its context like a model ten thousand times larger, and for the same reason tells whatever is in
the pages that it is made to read. K of layer 1 and V hold what was in the prompt, as in any model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch

from kvwitness.gpu_tracer.lab.text import ALPHABET

LAYERS = 2
CODE = 64
"""Numbers that describe a character, or a position."""
BACK = 3
"""How far layer 0 looks back, and so its heads."""
WIDTH = BACK * CODE
"""Numbers of K, and of V, for a slot and layer."""
HEADS = (BACK, 1)
"""Of each layer; they share the width."""

_NEARER = (1.0, 0.6, 0.3)
"""What the present character counts in layer 1, and the two before."""
_SHARP_0, _SHARP_1 = 40.0, 30.0
"""How much a match counts before softmax: near enough to a plain choice."""
_TOKEN, _BACK, _NEXT, _PLACE = 0, CODE, CODE * (1 + BACK), CODE * (2 + BACK)
_RESIDUAL = CODE * (3 + BACK)
"""Where in the residual stream: the character, those before it, the next one, the position."""

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q, k, v), each [position, WIDTH] -> what attention brings; k and v are kept for later."""


class Model:
    """The weights, and the way through them. Attention, and with it the cache, is the caller's."""

    def __init__(self) -> None:
        walsh = [[1.0 - 2 * ((i & j).bit_count() & 1) for j in range(CODE)] for i in range(1, len(ALPHABET) + 1)]
        self.characters = torch.tensor(walsh) / math.sqrt(CODE)  # orthogonal, of length 1
        drawn = hashlib.shake_256(b"frequencies").digest(CODE)
        self._frequencies = torch.tensor(
            [math.pi * int.from_bytes(drawn[at : at + 2], "little") / 65536 for at in range(0, CODE, 2)]
        )
        self.q, self.k = torch.zeros(LAYERS, _RESIDUAL, WIDTH), torch.zeros(LAYERS, _RESIDUAL, WIDTH)
        self.v, self.o = torch.zeros(LAYERS, _RESIDUAL, WIDTH), torch.zeros(LAYERS, WIDTH, _RESIDUAL)
        one = torch.eye(CODE)
        for head in range(BACK):
            here = slice(head * CODE, (head + 1) * CODE)
            past = slice(_BACK + head * CODE, _BACK + (head + 1) * CODE)
            before = slice(_TOKEN, CODE) if head == 0 else slice(past.start - CODE, past.stop - CODE)
            self.q[0, _PLACE:, here] = self._turned(-(head + 1)) * _SHARP_0
            self.k[0, _PLACE:, here] = one
            self.v[0, _TOKEN:CODE, here] = one
            self.o[0, here, past] = one
            self.q[1, before, here] = one * _NEARER[head] * _SHARP_1
            self.k[1, past, here] = one
        self.v[1, _TOKEN:CODE, :CODE] = one
        self.o[1, :CODE, _NEXT:_PLACE] = one

    def forward(self, ids: list[int], first: int, attend: Attend) -> int:
        """Take in tokens at positions from `first` on; the token that follows the last of them."""
        residual = torch.zeros(len(ids), _RESIDUAL)
        residual[:, _TOKEN:CODE] = self.characters[ids]
        residual[:, _PLACE:] = self._places(torch.arange(first, first + len(ids), dtype=torch.float32))
        for layer in range(LAYERS):
            q, k, v = (residual @ weights[layer] for weights in (self.q, self.k, self.v))
            residual = residual + attend(layer, q, k, v) @ self.o[layer]
        return int((self.characters @ residual[-1, _NEXT:_PLACE]).argmax())

    def _places(self, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, None] * self._frequencies
        return torch.cat([angles.cos(), angles.sin()], -1) / math.sqrt(CODE / 2)

    def _turned(self, by: int) -> torch.Tensor:
        """The matrix that turns the code of a position into that of the position `by` further on."""
        angles = self._frequencies * by
        cosine, sine = torch.diag(angles.cos()), torch.diag(angles.sin())
        return torch.cat([torch.cat([cosine, sine], 1), torch.cat([-sine, cosine], 1)], 0)
