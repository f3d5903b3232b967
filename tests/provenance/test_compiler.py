"""The kernel's language means in machine code what it means in Python, and nothing outside it is compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwitness.audit.provenance.compiler import Layout, Module, NotCompilable
from kvwitness.audit.provenance.kernel.ahead import soon
from kvwitness.audit.provenance.tables import row_class

ROW = np.dtype([("a", "i4"), ("b", "i8")], align=True)
APART = np.dtype([("a", "i8"), ("b", "i8")], align=True)
ONE = np.dtype([("total", "i8"), ("small", "i4")], align=True)
LAYOUT = Layout(
    slots={"rows": 0, "numbers": 2, "listed": 4, "one": 6, "apart.a": 8, "apart.b": 10},
    records={"rows": ROW, "one": ONE},
    columns={"apart": APART},
    numbers={"numbers": np.dtype("i8"), "listed": np.dtype("u4")},
    single="one",
)
LIMIT = 7
FAR = 2**31

small = st.integers(-(2**20), 2**20)

TOLD = {"a": [3, 1, 4, 1, 5], "b": [-9, 2, 6, 5, 3]}
"""What stands in the table of columns."""


class Interpreted:
    """A world of five rows for Python."""

    def __init__(self, listed: list[int]) -> None:
        self.rows = [row_class(ROW)() for _ in range(5)]
        self.apart = [row_class(APART)() for _ in range(5)]
        for row, a, b in zip(self.apart, TOLD["a"], TOLD["b"], strict=True):
            row.a, row.b = a, b
        self.numbers = [0] * 5
        self.listed = listed
        self.one = row_class(ONE)()

    def all(self) -> list[int]:
        return [v for r in self.rows for v in (r.a, r.b)] + self.numbers + [self.one.total, self.one.small]


class Compiled:
    """The same for machine code."""

    def __init__(self, listed: list[int]) -> None:
        self.rows, self.numbers, self.one = np.zeros(5, ROW), np.zeros(5, "i8"), np.zeros(1, ONE)
        self.listed = np.array(listed, "u4")
        self.apart = [np.array(column, np.int64) for column in TOLD.values()]
        tables: list[Any] = [self.rows, self.numbers, self.listed, self.one, *self.apart]
        self.directory = np.array([word for t in tables for word in (t.ctypes.data, len(t))], np.int64)

    def all(self) -> list[int]:
        rows = [int(v) for r in self.rows for v in (r["a"], r["b"])]
        return rows + self.numbers.tolist() + [int(self.one["total"][0]), int(self.one["small"][0])]


def machine_code(function: Callable[..., int]) -> Callable[..., int]:
    """The function as machine code, to be called with a directory and numbers."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = Module(LAYOUT)
    made = module.entry(function)
    parsed = llvm.parse_assembly(str(module.module))
    parsed.verify()
    target = llvm.Target.from_default_triple().create_target_machine(opt=2)
    passes = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(parsed, passes)
    engine = llvm.create_mcjit_compiler(parsed, target)
    engine.finalize_object()
    kinds = [ctypes.c_int64] * len(made.args)
    entry = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(engine.get_function_address(function.__name__))

    def call(world: Compiled, *numbers: int) -> int:
        return int(entry(world.directory.ctypes.data, *numbers))

    call.engine = engine  # type: ignore[attr-defined]  # the code lives as long as its engine
    return call


def halves(w: Any, a: int, b: int) -> tuple[int, int]:
    w.one.total += 1
    return a // 2, b % 2


def is_even(w: Any, a: int) -> bool:
    if a > 1 << 30:
        return False
    return a % 2 == 0


def nothing(w: Any, a: int) -> None:
    if a < 0:
        return
    w.one.small = a % 100


def everything(w: Any, a: int, b: int) -> int:
    """All of the language, on two numbers."""
    divisor = b if b != 0 else 1
    total = a // divisor + a % divisor + (a & b) - (a | b) + (a ^ 3) + ~b + -a
    total += (a << 3) + (b >> 2) + min(a, b, LIMIT) - max(a, b)
    high, odd = halves(w, a, b)
    total += high * 3 + odd
    flag = is_even(w, a) and 0 <= b < LIMIT
    if flag or not a > b:
        total += 1
    elif a == b:
        total -= 100
    else:
        total += int(bool(a)) + (2 if is_even(w, b) else 5)
    nothing(w, a)
    row = w.rows[a % 5]
    row.a += b % 1000
    if a == b:
        pass
    row.b = total
    soon(w.rows[b % 5])
    here = w.apart[a % 5]
    total += here.a * 7 + w.apart[b % 5].b
    w.rows[b % 5].a |= 4
    for i in range(len(w.listed)):
        if w.listed[i] == 3:
            continue
        if w.listed[i] > FAR:
            break
        w.numbers[i % 5] = w.listed[i] + i
        total += i
    for i in range(4, -1, -2):
        total += w.numbers[i] * i
    i = 0
    while i < 10:
        i += 1
        if i == b % 10:
            break
        for j in range(i):
            total += j
    x, y = total, a
    x, y = y, x
    return x - y


@pytest.fixture(scope="module")
def compiled() -> Callable[..., int]:
    return machine_code(everything)


@given(a=small, b=small, listed=st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 5), max_size=12))
def test_machine_code_does_what_python_does(compiled: Callable[..., int], a: int, b: int, listed: list[int]) -> None:
    slow, fast = Interpreted(listed), Compiled(listed)
    assert compiled(fast, a, b) == everything(slow, a, b)
    assert fast.all() == slow.all()


def by_zero(w: Any, a: int, b: int) -> int:
    return a // b + a % b


def test_division_by_zero_does_not_bring_the_process_down() -> None:
    assert machine_code(by_zero)(Compiled([]), 5, 0) == 5


def looks_away(w: Any, a: int) -> int:
    return w.numbers[a] if 0 <= a < len(w.numbers) and w.numbers[a] >= 0 else -1


def test_what_is_not_decided_by_what_came_before_is_not_looked_at() -> None:
    far = machine_code(looks_away)
    assert [far(Compiled([]), n) for n in (2, -(1 << 50), 1 << 50)] == [0, -1, -1]


def calls_outside(w: Any) -> int:
    return abs(-1)


def text(w: Any) -> int:
    a = "no"
    return len(a)


def unknown(w: Any) -> int:
    return LAYOUT  # type: ignore[return-value]


def no_such_field(w: Any) -> int:
    return int(w.rows[0].c)


def no_such_table(w: Any) -> int:
    return int(w.columns[0].a)


def no_such_column(w: Any) -> int:
    return int(w.apart[0].c)


def writes_a_column(w: Any) -> int:
    w.apart[0].a = 1
    return 0


def changes_kind(w: Any) -> int:
    row = w.rows[0]
    row = 3
    return int(row)


def other_table(w: Any) -> int:
    row = w.rows[0]
    row = w.one
    return int(row.total)


def over_a_list(w: Any) -> int:
    n = 0
    for a in [1, 2]:
        n += a
    return n


def with_else(w: Any) -> int:
    n = 0
    while n < 3:
        n += 1
    else:
        n = 9
    return n


def divides(w: Any) -> int:
    return 1 / 2  # type: ignore[return-value]


def after_return(w: Any) -> int:
    return 1
    return 2


@pytest.mark.parametrize(
    "function",
    [
        calls_outside, text, unknown, no_such_field, no_such_table, no_such_column, writes_a_column, changes_kind,
        other_table, over_a_list, with_else, divides, after_return,
    ],
)  # fmt: skip
def test_what_is_not_in_the_language_is_refused_with_its_place(function: Callable[..., int]) -> None:
    with pytest.raises(NotCompilable, match=r"test_compiler\.py:\d+: "):
        Module(LAYOUT).entry(function)
