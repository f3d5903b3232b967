"""How the replay kernel is compiled and where its machine code is kept.

Numba looks only at the file of the outermost function when it decides whether a cached kernel is still valid. The
kernel is spread over several files, so the cache directory carries a fingerprint of all of them: a new release, or
an edit to any of them, compiles afresh and never runs old machine code.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent


@functools.cache
def _cache_dir() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted((_HERE / "kernel").glob("*.py")):
        digest.update(path.read_bytes())
    base = os.environ.get("KVWITNESS_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "kvwitness"
    )
    return os.path.join(base, "kernel-" + digest.hexdigest()[:16])


ENTRY = "run"
"""The only kernel function that Python calls; the others need no way in from there."""

_ARRAYS: dict[str, tuple[Any, int]] = {
    **dict.fromkeys(("S", "C", "L", "N", "SP", "PP", "TP", "RG", "SCR", "FG"), (numba.int32, 2)),
    **dict.fromkeys(("E", "A", "R", "P", "SH", "PB", "TR", "TX", "RR", "ST", "FR"), (numba.int64, 2)),
    **dict.fromkeys(("CT", "K", "GS"), (numba.int64, 1)),
    **dict.fromkeys(("G1", "G2"), (numba.uint32, 1)),
}
_READ_ONLY = ("G1", "G2")  # page lists may lie in an Arrow buffer
_RESULTS: dict[str, Any] = {
    "None": numba.void,
    "int": numba.int64,
    "bool": numba.boolean,
    "tuple[int, int]": numba.types.UniTuple(numba.int64, 2),
    "tuple[int, int, int]": numba.types.UniTuple(numba.int64, 3),
}


def _signature(function: Callable[..., Any]) -> Any:
    """The one signature of a kernel function: arrays go by their names, everything else is a 64-bit integer.

    Without it numba would compile a function anew for every mixture of 32- and 64-bit arguments it is called with.
    """
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in _ARRAYS:
            dtype, ndim = _ARRAYS[parameter.name]
            parameters.append(numba.types.Array(dtype, ndim, "C", readonly=parameter.name in _READ_ONLY))
        else:
            parameters.append(numba.boolean if parameter.annotation == "bool" else numba.int64)
    return _RESULTS[str(function.__annotations__["return"])](*parameters)


def kernel(function: F) -> F:
    """Compile a kernel function, or load its machine code; nothing of Python remains in it, no bounds are checked."""
    if os.environ.get("KVWITNESS_KERNEL") == "python":
        return function
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _cache_dir()
    try:
        compiled: F = numba.njit(
            _signature(function),
            cache=True,
            nogil=True,
            error_model="numpy",
            no_cfunc_wrapper=True,
            no_cpython_wrapper=function.__name__ != ENTRY,
            _nrt=False,
        )(function)
    finally:
        numba.config.CACHE_DIR = before
    return compiled
