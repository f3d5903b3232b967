"""The kernel as machine code: compiled with LLVM when a process first needs it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from kvwitness.audit.provenance import choice
from kvwitness.audit.provenance.compiler import Layout, Module
from kvwitness.audit.provenance.kernel import layout
from kvwitness.audit.provenance.kernel.run import run
from kvwitness.audit.provenance.world import SLOTS, World

WORLD = Layout(
    slots=SLOTS,
    records=layout.TABLES,
    columns=layout.COLUMNS,
    numbers={name: np.dtype(kind) for name, kind in layout.LISTS.items()},
    single="count",
)

INLINE_BELOW = 100
"""Lower than the usual 225: halves the time to compile, and what runs often is inlined all the same."""

_ONE = threading.Lock()

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def intermediate(machine: Any) -> str:
    """The kernel in LLVM's language, not optimised."""
    module = Module(WORLD)
    module.entry(run)
    module.module.triple = machine.triple
    module.module.data_layout = str(machine.target_data)
    return str(module.module)


def compiled() -> Callable[[World, int, int], int]:
    """`kernel.run.run`, compiled; the interpreter's lock is free while it runs. Waits for who is at it already."""
    with _ONE:
        return _compiled()


@cache
def _compiled() -> Callable[[World, int, int], int]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    parsed = llvm.parse_assembly(intermediate(machine))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.inlining_threshold = INLINE_BELOW
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    entry = _ENTRY(engine.get_function_address(run.__name__))

    def call(world: World, first: int, end: int) -> int:
        return int(entry(world.address, first, end))

    choice.at_hand.set()
    call.engine = engine  # type: ignore[attr-defined]  # the code lives as long as its engine
    return call
