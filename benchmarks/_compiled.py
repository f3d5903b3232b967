"""The fingerprint kernel compiled for GPUs that need not be there, and what the machine code of it says.

Triton brings NVIDIA's assembler and disassembler along. The kernel has no loops left, so the instructions that one
thread executes are those that stand in the listing, and their number per 8 bytes of the cache follows from how many
threads go over how many words.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvwitness.gpu_tracer.content.geometry import Geometry, geometry
from kvwitness.gpu_tracer.content.layout import by_page, by_slot, whole_pages

CAPABILITIES = (80, 90, 100)
"""Compute capabilities without the dot: A100, H100 and H200, B200."""
MOST = 24
"""Instructions per 8 bytes, with 64 bits: so few that a fingerprint should wait for the memory, and not for them."""
_LISTED = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)")
_JUMPS = ("BRA", "BRX", "JMP", "JMX", "CALL")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class Compiled:
    """What the machine code for one layout and GPU is like."""

    layout: str
    capability: int
    bits: int
    limited: bool
    """Whether `MOST` holds for it."""
    instructions: int
    """That a thread executes."""
    per_word: float
    """Instructions per 8 bytes of the cache."""
    registers: int
    spilled: int
    """Bytes of the stack for each thread, and loads from it and stores to it."""

    @property
    def wrong(self) -> str | None:
        """What is not as it has to be."""
        where = f"{self.layout}, {self.bits} bits, sm_{self.capability}"
        if self.spilled:
            return f"{where}: registers are spilled"
        if self.limited and self.per_word > MOST:
            return f"{where}: {self.per_word:.1f} instructions per 8 bytes, more than {MOST}"
        return None


def layouts() -> dict[str, tuple[Geometry, bool]]:
    """Layouts of pages of 16 or 64 tokens, and whether the limit holds for them."""
    half, byte = torch.bfloat16, torch.uint8
    pages = 8
    index = torch.empty(pages, 64 * 132, dtype=byte)
    parts = {
        "MHA, 8 heads of 128, bfloat16 (2048 B)": by_page(0, "", torch.empty(pages, 16, 8, 128, dtype=half)),
        "the same, heads first (8 x 256 B)": by_page(0, "", torch.empty(pages, 8, 16, 128, dtype=half).transpose(1, 2)),
        "MHA, 1 head of 128, bfloat16 (256 B)": by_page(0, "", torch.empty(pages, 16, 1, 128, dtype=half)),
        "MHA, 1 head of 128, FP8 (128 B)": by_page(0, "", torch.empty(pages, 16, 1, 128, dtype=byte)),
        "pages of one token (256 B)": by_slot(0, "", torch.empty(pages * 64, 1, 128, dtype=half), 1),
        "MLA, bfloat16 (1152 B)": by_slot(0, "", torch.empty(pages * 64, 1, 576, dtype=half), 64),
        "MLA, fp8_ds_mla (656 B)": by_slot(0, "", torch.empty(pages * 64, 1, 656, dtype=byte), 64),
        "an indexer's keys (128 B)": by_page(0, "", index[:, : 64 * 128].view(pages, 64, 1, 128)),
        "an indexer's scales (256 B per page)": whole_pages(0, "", index[:, 64 * 128 :]),
        "a state of 64 KiB per page": whole_pages(0, "", torch.empty(pages, 1 << 16, dtype=byte)),
    }
    ragged = by_page(0, "", torch.empty(pages, 16, 1, 66, dtype=half))
    found = {name: (geometry(part), True) for name, part in parts.items()}
    found["rows of no whole words (132 B)"] = geometry(ragged), False
    return {name: (shape, limited) for name, (shape, limited) in found.items() if shape is not None}


@dataclass(frozen=True)
class _Code:
    listed: list[str]
    """The names of its instructions, in order."""
    registers: int
    spilled: int


def compiled(layout: str, shape: Geometry, limited: bool, capability: int, bits: int) -> Compiled:
    """Compile for one layout and GPU. Raises RuntimeError where the code has jumps, so that it cannot be counted."""
    from kvwitness.gpu_tracer.content import kernel

    plan = kernel.Plan.of(shape)
    constants = plan.constants(bits // 64)
    code = _code(kernel.cells, {**_pointers("bases", "keys", "table", "out"), "room": "i32"}, constants, capability)
    last = max(at for at, name in enumerate(code.listed) if name == "EXIT")
    executed, after = code.listed[: last + 1], code.listed[last + 1 :]
    if [name for name in executed if name.startswith(_JUMPS)] or {*after} - {"BRA", "NOP"}:
        raise RuntimeError(f"sm_{capability}, {layout}: the code has jumps, so its instructions cannot be counted")
    words = plan.slots * (plan.chunks * constants["WIDTH"] if plan.pieces > 1 else shape.words)
    return Compiled(
        layout=layout,
        capability=capability,
        bits=bits,
        limited=limited and bits == 64,
        instructions=len(executed),
        per_word=len(executed) * kernel.OPTIONS["num_warps"] * 32 / words,
        registers=code.registers,
        spilled=code.spilled,
    )


def roll_up(capability: int) -> int:
    """Compile what rolls cells up to pages, of 64 slots; how much it spills. It has a loop, and is not counted."""
    from kvwitness.gpu_tracer.content import kernel

    constants = {"ROWS": 2, "SLOTS": 64, "ROOM": 256, "BLOCK": 64}
    return _code(kernel.rolled, _pointers("rows", "table", "out"), constants, capability).spilled


def _pointers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "*i64")


def _code(function: Any, arguments: dict[str, str], constants: dict[str, int], capability: int) -> _Code:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kvwitness.gpu_tracer.content import kernel

    # that addresses are multiples of 16 is as torch allocates, and that the room is, as pages have it
    source = ASTSource(
        fn=function,
        signature={**arguments, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={(at,): [["tt.divisibility", 16]] for at in range(len(arguments))},
    )
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(kernel.OPTIONS))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        listing, usage = (_said(triton.knobs.nvidia.cuobjdump.path, how, file.name) for how in ("-sass", "-res-usage"))
    listed = [one[1] for line in listing.splitlines() if (one := _LISTED.match(line))]
    used = _USAGE.search(usage)
    if not listed or not used:
        raise RuntimeError(f"sm_{capability}: cuobjdump printed no instructions, or not what they use")
    registers, stack, _, local = (int(one) for one in used.groups())
    return _Code(listed, registers, stack + local + sum(name.startswith(("LDL", "STL")) for name in listed))


def _said(tool: str, how: str, file: str) -> str:
    done = subprocess.run([tool, how, file], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def every() -> Iterator[Compiled]:
    """All layouts, for all GPUs, with 64 and with 128 bits."""
    for name, (shape, limited) in layouts().items():
        for capability in CAPABILITIES:
            for bits in (64, 128):
                yield compiled(name, shape, limited, capability, bits)
