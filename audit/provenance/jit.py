"""How the replay kernel is compiled, where its machine code is kept, and when it is interpreted instead.

Compiling takes the better part of a minute, once per machine and release; small traces do not wait for it. Numba looks
only at the file of the outermost function when it decides whether cached code is still valid. The kernel is spread over
several files, so the cache directory carries a fingerprint of all of them: a new release, or an edit to any of them,
compiles afresh and never runs old machine code.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent

ENTRY = "run"
"""The only kernel function that Python calls; the others need no way in from there."""

compiling = True
"""What `kernel` does with the functions that are being loaded: compile them, or leave them as they are."""

RECORDS = {
    "E": "EVENT", "S": "PAGE", "C": "COLD", "L": "LAYER", "N": "OPEN_WRITE", "A": "ACTOR", "R": "PAIR", "P": "POOL",
    "SH": "SHARE", "SP": "SHARE_PAGE", "PB": "PUBLICATION", "PP": "PUBLICATION_PAGE", "TR": "TRANSFER",
    "TP": "TRANSFER_PAGE", "TX": "TRANSFER_ID", "RR": "READ", "RG": "READ_PAGE", "ST": "STEP", "SCR": "PIECE",
    "FR": "FACT", "FG": "FACT_PAGE",
}  # fmt: skip
"""Parameter name of a table -> the record that it holds (see `kernel.layout`)."""

_PLAIN = {"K": "int64", "GS": "int64", "G1": "uint32", "G2": "uint32"}
_READ_ONLY = ("G1", "G2")  # page lists may lie in an Arrow buffer


@functools.cache
def cache_dir() -> Path:
    """Where the machine code of this kernel is kept: below KVWITNESS_CACHE, else the user's cache directory."""
    digest = hashlib.sha256(version("numba").encode())
    for path in (Path(__file__), *sorted((_HERE / "kernel").glob("*.py"))):
        digest.update(path.read_bytes())
    own = os.environ.get("KVWITNESS_CACHE")
    base = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvwitness"
    return base / f"kernel-{digest.hexdigest()[:16]}"


def is_compiled() -> bool:
    """Whether the machine code lies in the cache."""
    return any(cache_dir().rglob(f"{ENTRY}.{ENTRY}-*.nbi"))


def _signature(function: Callable[..., Any]) -> Any:
    """The one signature of a kernel function: tables go by their names, everything else is a 64-bit integer.

    Without it numba would compile a function anew for every mixture of 32- and 64-bit arguments it is called with.
    """
    numba: Any = import_module("numba")  # its own types do not describe the options used here
    from kvwitness.audit.provenance.kernel import layout

    results = {
        "None": numba.void,
        "int": numba.int64,
        "bool": numba.boolean,
        "tuple[int, int]": numba.types.UniTuple(numba.int64, 2),
        "tuple[int, int, int]": numba.types.UniTuple(numba.int64, 3),
    }
    parameters: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name
        if name in RECORDS:
            parameters.append(numba.types.Array(numba.from_dtype(getattr(layout, RECORDS[name])), 1, "C"))
        elif name == "CT":
            record = numba.from_dtype(layout.COUNTERS)
            parameters.append(numba.types.Array(record, 1, "C") if function.__name__ == ENTRY else record)
        elif name in _PLAIN:
            plain = numba.types.Array(getattr(numba, _PLAIN[name]), 1, "C", readonly=name in _READ_ONLY)
            parameters.append(plain)
        else:
            parameters.append(numba.boolean if parameter.annotation == "bool" else numba.int64)
    return results[str(function.__annotations__["return"])](*parameters)


def kernel(function: F) -> F:
    """Compile a kernel function, or load its machine code; nothing of Python remains in it, no bounds are checked."""
    if not compiling:
        return function
    numba: Any = import_module("numba")
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_dir())
    try:
        compiled: F = numba.njit(
            _signature(function),
            cache=True,
            nogil=True,
            no_cfunc_wrapper=True,
            no_cpython_wrapper=function.__name__ != ENTRY,
            _nrt=False,
        )(function)
    finally:
        numba.config.CACHE_DIR = before
    return compiled
