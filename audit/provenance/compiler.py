"""A compiler for the replay kernel: functions over integers and tables of records, to LLVM and on to machine code.

The kernel is written in the small part of Python that means the same for machine integers: arithmetic, comparisons,
conditions, loops over ranges, calls between its functions, and records of the tables of its world. That part compiles
as one module in about a second. A general compiler needed half a minute for it, because it typed every function for
every table, and optimised each one again inside every caller.

Whatever is not understood is refused with its place. What differs from Python: integers are 64 bits wide; `and`, `or`
and `not` give truth values; division by zero gives the dividend's remainder of division by one; a table's index is not
checked. The kernel as Python runs it is the reference (`tests/provenance/test_compiled.py`).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llvmlite import ir

Dtype = np.dtype[Any]

I64, I32, I1, VOID, POINTER = ir.IntType(64), ir.IntType(32), ir.IntType(1), ir.VoidType(), ir.PointerType()

_RESULTS = {"None": VOID, "int": I64, "bool": I1}
_ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.LShift: "shl"}
_BITS = {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor"}
_COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class NotCompilable(Exception):
    """Kernel code outside the language; says where."""


@dataclass(frozen=True)
class Layout:
    """The world as compiled code finds it: a directory of 64-bit words, an address and a length for each table."""

    slots: Mapping[str, int]
    """Name -> index in the directory of the address; the length comes next."""
    records: Mapping[str, Dtype]
    """Tables of records."""
    columns: Mapping[str, Dtype]
    """Tables of which each field has a slot of its own, `TABLE.FIELD`: an array of 64-bit numbers."""
    numbers: Mapping[str, Dtype]
    """Tables of plain numbers: signed 64 bits or unsigned 32 bits."""
    single: str
    """The table of one record that is named without an index."""


@dataclass(frozen=True)
class Record:
    """A place in a table of records."""

    table: str
    address: Any
    """Of a table of columns: the row."""


@dataclass(frozen=True)
class Table:
    """A table itself: to be indexed, or asked for its length."""

    name: str


@dataclass
class Module:
    """Functions compiled so far, and what they share."""

    layout: Layout
    module: ir.Module = field(default_factory=lambda: ir.Module("kernel"))
    functions: dict[str, ir.Function] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)

    def entry(self, function: Callable[..., Any]) -> ir.Function:
        """Compile a function and all that it calls; only this one can be called from outside."""
        made = self.function(function)
        made.linkage = "external"
        return made

    def function(self, function: Callable[..., Any]) -> ir.Function:
        """The compiled form of a function, made when it is first asked for."""
        name = function.__name__
        if name not in self.functions:
            parameters = list(inspect.signature(function).parameters.values())
            given = [POINTER if p.name == "w" else I1 if p.annotation == "bool" else I64 for p in parameters]
            signature = ir.FunctionType(_result(function), given)
            made = ir.Function(self.module, signature, name)
            made.linkage = "internal"
            made.attributes.add("nounwind")
            self.functions[name] = made
            _Function(self, function, made, [p.name for p in parameters]).compile()
        return self.functions[name]

    def apart(self, place: str) -> Any:
        """Metadata which says that a field is never reached as any other: stores to one leave the others alone."""
        if place not in self.tags:
            root = self.module.add_metadata(["kernel"])
            kind = self.module.add_metadata([place, root, ir.Constant(I64, 0)])
            self.tags[place] = self.module.add_metadata([kind, kind, ir.Constant(I64, 0)])
        return self.tags[place]


def _result(function: Callable[..., Any]) -> Any:
    stated = str(function.__annotations__["return"])
    if stated.startswith("tuple["):
        return ir.LiteralStructType([_RESULTS[part.strip()] for part in stated[6:-1].split(",")])
    return _RESULTS[stated]


class _Function:
    """Compiles one function body."""

    def __init__(self, module: Module, function: Callable[..., Any], made: ir.Function, names: list[str]) -> None:
        self._module, self._layout = module, module.layout
        self._source = function
        self._globals: dict[str, Any] = function.__globals__
        self._made = made
        self._b = ir.IRBuilder(made.append_basic_block("entry"))
        self._world = made.args[0]
        self._slots: dict[str, Any] = {}
        self._records: dict[str, str] = {}
        self._loops: list[tuple[Any, Any]] = []
        for name, value in zip(names, made.args, strict=True):
            if name != "w":
                self._assign_name(name, value)

    def compile(self) -> None:
        """Fill the function."""
        tree = ast.parse(textwrap.dedent(inspect.getsource(self._source)))
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        self._body(definition.body)
        if not self._b.block.is_terminated:
            if self._made.ftype.return_type == VOID:
                self._b.ret_void()
            else:
                self._b.unreachable()

    def _refuse(self, node: ast.AST, why: str) -> NotCompilable:
        line = getattr(node, "lineno", 1) + self._source.__code__.co_firstlineno - 1
        return NotCompilable(f"{self._source.__code__.co_filename}:{line}: {why}: {ast.unparse(node)}")

    # --- statements ---

    def _body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if self._b.block.is_terminated:
                raise self._refuse(statement, "never reached")
            visit = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if visit is None:
                raise self._refuse(statement, "not in the kernel's language")
            visit(statement)

    def _pass(self, node: ast.Pass) -> None:
        return

    def _expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            raise self._refuse(node, "one target at a time")
        target = node.targets[0]
        if not isinstance(target, ast.Tuple):
            self._store(target, self._value(node.value))
            return
        if isinstance(node.value, ast.Tuple):
            values = [self._value(part) for part in node.value.elts]
        else:
            packed = self._value(node.value)
            values = [self._b.extract_value(packed, n) for n in range(len(target.elts))]
        for part, value in zip(target.elts, values, strict=True):
            self._store(part, value)

    def _augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Attribute):
            record = self._record(node.target.value)
            old = self._field(record, node.target.attr, node)
            self._set_field(record, node.target.attr, self._operate(node.op, old, self._int(node.value), node), node)
            return
        current = ast.copy_location(ast.Name(getattr(node.target, "id", ""), ast.Load()), node)
        self._store(node.target, self._operate(node.op, self._int(current), self._int(node.value), node))

    def _return(self, node: ast.Return) -> None:
        wanted = self._made.ftype.return_type
        if node.value is None:
            self._b.ret_void()
        elif isinstance(node.value, ast.Tuple):
            packed = ir.Constant(wanted, ir.Undefined)
            for n, part in enumerate(node.value.elts):
                packed = self._b.insert_value(packed, self._int(part), n)
            self._b.ret(packed)
        elif wanted == I1:
            self._b.ret(self._truth(node.value))
        elif wanted == I64:
            self._b.ret(self._int(node.value))
        else:
            self._b.ret(self._value(node.value))

    def _if(self, node: ast.If) -> None:
        then, after = self._block("then"), self._block("after")
        other = self._block("else") if node.orelse else after
        self._b.cbranch(self._truth(node.test), then, other)
        self._branch(then, node.body, after)
        if node.orelse:
            self._branch(other, node.orelse, after)
        self._b.position_at_end(after)

    def _branch(self, block: Any, statements: list[ast.stmt], after: Any) -> None:
        self._b.position_at_end(block)
        self._body(statements)
        if not self._b.block.is_terminated:
            self._b.branch(after)

    def _while(self, node: ast.While) -> None:
        if node.orelse:
            raise self._refuse(node, "no else after a loop")
        test, body, after = self._block("test"), self._block("body"), self._block("after")
        self._b.branch(test)
        self._b.position_at_end(test)
        self._b.cbranch(self._truth(node.test), body, after)
        self._loop(body, node.body, test, after)

    def _loop(self, body: Any, statements: list[ast.stmt], again: Any, after: Any) -> None:
        self._loops.append((again, after))
        self._branch(body, statements, again)
        self._loops.pop()
        self._b.position_at_end(after)

    def _for(self, node: ast.For) -> None:
        call = node.iter
        ranged = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        if not ranged or node.orelse or not isinstance(node.target, ast.Name):
            raise self._refuse(node, "loops go over ranges")
        assert isinstance(call, ast.Call)
        step = self._step(call)
        bounds = [self._int(part) for part in call.args[:2]]
        start, stop = bounds if len(bounds) == 2 else (I64(0), bounds[0])
        counter = self._slot(I64)
        self._b.store(start, counter)
        test, body, step_on, after = (self._block(name) for name in ("test", "body", "step", "after"))
        self._b.branch(test)
        self._b.position_at_end(test)
        at = self._b.load(counter, typ=I64)
        self._b.cbranch(self._b.icmp_signed("<" if step > 0 else ">", at, stop), body, after)
        self._b.position_at_end(body)
        self._assign_name(node.target.id, at)
        self._loop(body, node.body, step_on, after)
        self._b.position_at_end(step_on)
        self._b.store(self._b.add(self._b.load(counter, typ=I64), I64(step), flags=["nsw"]), counter)
        self._b.branch(test)
        self._b.position_at_end(after)

    def _step(self, call: ast.Call) -> int:
        step = ast.literal_eval(call.args[2]) if len(call.args) == 3 else 1
        if not isinstance(step, int) or step == 0:
            raise self._refuse(call, "a step is a constant")
        return step

    def _break(self, node: ast.Break) -> None:
        self._b.branch(self._loops[-1][1])

    def _continue(self, node: ast.Continue) -> None:
        self._b.branch(self._loops[-1][0])

    # --- places ---

    def _block(self, name: str) -> Any:
        return self._made.append_basic_block(name)

    def _slot(self, kind: Any) -> Any:
        """Room for a local value; the optimiser turns it into a register."""
        with self._b.goto_entry_block():
            return self._b.alloca(kind)

    def _store(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._assign_name(target.id, value, target)
        elif isinstance(target, ast.Attribute):
            self._set_field(self._record(target.value), target.attr, self._as_int(value, target), target)
        elif isinstance(target, ast.Subscript):
            table = self._value(target.value)
            if not isinstance(table, Table) or table.name not in self._layout.numbers:
                raise self._refuse(target, "not a table of numbers")
            address, dtype = self._element(table.name, self._int(target.slice), self._layout.numbers[table.name])
            stored = self._as_int(value, target)
            store = self._b.store(stored if dtype.itemsize == 8 else self._b.trunc(stored, I32), address)
            store.set_metadata("tbaa", self._module.apart(table.name))
        else:
            raise self._refuse(target, "no such place")

    def _assign_name(self, name: str, value: Any, node: ast.AST | None = None) -> None:
        if isinstance(value, Table):
            raise self._refuse(node or ast.Name(name), "a table has no second name")
        if isinstance(value, Record):
            if self._records.setdefault(name, value.table) != value.table:
                raise self._refuse(node or ast.Name(name), "a record of another table")
            value = value.address
        if name not in self._slots:
            self._slots[name] = self._slot(value.type), value.type
        slot, kind = self._slots[name]
        if kind == I64 and value.type == I1:
            value = self._b.zext(value, I64)
        if value.type != kind:
            raise self._refuse(node or ast.Name(name), "a value of another kind")
        self._b.store(value, slot)

    def _record(self, node: ast.expr) -> Record:
        value = self._value(node)
        if not isinstance(value, Record):
            raise self._refuse(node, "not a record")
        return value

    def _directory(self, word: int) -> Any:
        """A word of the directory, which stands still while the kernel runs."""
        place = self._b.gep(self._world, [I64(word)], inbounds=True, source_etype=I64)
        loaded = self._b.load(place, typ=I64)
        loaded.set_metadata("invariant.load", self._module.module.add_metadata([]))
        return loaded

    def _element(self, table: str, index: Any, dtype: Dtype) -> tuple[Any, Dtype]:
        base = self._b.inttoptr(self._directory(self._layout.slots[table]), POINTER)
        row = ir.ArrayType(ir.IntType(8), dtype.itemsize)
        return self._b.gep(base, [index], inbounds=True, source_etype=row), dtype

    def _place(self, record: Record, name: str, node: ast.AST) -> tuple[Any, Any]:
        if record.table in self._layout.columns:
            return self._column_place(record, name, node)
        fields: Mapping[str, tuple[Any, ...]] = self._layout.records[record.table].fields or {}
        if name not in fields:
            raise self._refuse(node, f"no field {name} in {record.table}")
        dtype, offset = fields[name][0], fields[name][1]
        byte = ir.IntType(8)
        return self._b.gep(record.address, [I64(offset)], inbounds=True, source_etype=byte), ir.IntType(
            8 * dtype.itemsize
        )

    def _column_place(self, record: Record, name: str, node: ast.AST) -> tuple[Any, Any]:
        slot = self._layout.slots.get(f"{record.table}.{name}")
        if slot is None:
            raise self._refuse(node, f"no field {name} in {record.table}")
        base = self._b.inttoptr(self._directory(slot), POINTER)
        return self._b.gep(base, [record.address], inbounds=True, source_etype=I64), I64

    def _field(self, record: Record, name: str, node: ast.AST) -> Any:
        address, kind = self._place(record, name, node)
        value = self._b.load(address, typ=kind)
        value.set_metadata("tbaa", self._module.apart(f"{record.table}.{name}"))
        return value if kind == I64 else self._b.sext(value, I64)

    def _set_field(self, record: Record, name: str, value: Any, node: ast.AST) -> None:
        if record.table in self._layout.columns:
            raise self._refuse(node, "columns are read only")
        address, kind = self._place(record, name, node)
        store = self._b.store(value if kind == I64 else self._b.trunc(value, kind), address)
        store.set_metadata("tbaa", self._module.apart(f"{record.table}.{name}"))

    # --- values ---

    def _value(self, node: ast.expr) -> Any:
        visit = getattr(self, f"_value_{type(node).__name__.lower()}", None)
        if visit is None:
            raise self._refuse(node, "not in the kernel's language")
        return visit(node)

    def _as_int(self, value: Any, node: ast.AST) -> Any:
        if isinstance(value, Record | Table) or value.type not in (I64, I1):
            raise self._refuse(node, "not a number")
        return value if value.type == I64 else self._b.zext(value, I64)

    def _int(self, node: ast.expr) -> Any:
        return self._as_int(self._value(node), node)

    def _truth(self, node: ast.expr) -> Any:
        value = self._value(node)
        if not isinstance(value, Record | Table) and value.type == I1:
            return value
        return self._b.icmp_signed("!=", self._as_int(value, node), I64(0))

    def _value_constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, bool):
            return I1(int(node.value))
        if isinstance(node.value, int):
            return I64(node.value)
        raise self._refuse(node, "numbers only")

    def _value_name(self, node: ast.Name) -> Any:
        if node.id in self._slots:
            slot, kind = self._slots[node.id]
            value = self._b.load(slot, typ=kind)
            return Record(self._records[node.id], value) if node.id in self._records else value
        constant = self._globals.get(node.id)
        if isinstance(constant, bool) or not isinstance(constant, int):
            raise self._refuse(node, "neither assigned before nor a number")
        return I64(constant)

    def _value_attribute(self, node: ast.Attribute) -> Any:
        if not (isinstance(node.value, ast.Name) and node.value.id == "w"):
            return self._field(self._record(node.value), node.attr, node)
        if node.attr == self._layout.single:
            address = self._b.inttoptr(self._directory(self._layout.slots[node.attr]), POINTER)
            return Record(node.attr, address)
        if node.attr not in self._layout.slots and node.attr not in self._layout.columns:
            raise self._refuse(node, "no such table")
        return Table(node.attr)

    def _value_subscript(self, node: ast.Subscript) -> Any:
        table = self._value(node.value)
        if not isinstance(table, Table):
            raise self._refuse(node, "not a table")
        index = self._int(node.slice)
        if table.name in self._layout.columns:
            return Record(table.name, index)
        if table.name in self._layout.records:
            return Record(table.name, self._element(table.name, index, self._layout.records[table.name])[0])
        address, dtype = self._element(table.name, index, self._layout.numbers[table.name])
        kind = I64 if dtype.itemsize == 8 else I32
        value = self._b.load(address, typ=kind)
        value.set_metadata("tbaa", self._module.apart(table.name))
        return value if kind == I64 else self._b.zext(value, I64)

    def _value_unaryop(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self._b.not_(self._truth(node.operand))
        value = self._int(node.operand)
        if isinstance(node.op, ast.USub):
            return self._b.sub(I64(0), value, flags=["nsw"])
        if isinstance(node.op, ast.Invert):
            return self._b.not_(value)
        raise self._refuse(node, "no such operation")

    def _value_binop(self, node: ast.BinOp) -> Any:
        return self._operate(node.op, self._int(node.left), self._int(node.right), node)

    def _operate(self, op: ast.operator, left: Any, right: Any, node: ast.AST) -> Any:
        b = self._b
        if type(op) in _ARITHMETIC:
            return getattr(b, _ARITHMETIC[type(op)])(left, right, flags=["nsw"])
        if type(op) in _BITS:
            return getattr(b, _BITS[type(op)])(left, right)
        if isinstance(op, ast.RShift):
            return b.ashr(left, right)
        if not isinstance(op, ast.FloorDiv | ast.Mod):
            raise self._refuse(node, "no such operation")
        divisor = b.select(b.icmp_signed("==", right, I64(0)), I64(1), right)
        quotient, rest = b.sdiv(left, divisor), b.srem(left, divisor)
        uneven = b.icmp_signed("!=", rest, I64(0))
        down = b.and_(uneven, b.icmp_signed("<", b.xor(rest, divisor), I64(0)))
        if isinstance(op, ast.FloorDiv):
            return b.sub(quotient, b.zext(down, I64))
        return b.select(down, b.add(rest, divisor), rest)

    def _value_compare(self, node: ast.Compare) -> Any:
        left = self._int(node.left)
        result = None
        for op, operand in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _COMPARISONS:
                raise self._refuse(node, "no such comparison")
            right = self._int(operand)
            this = self._b.icmp_signed(_COMPARISONS[type(op)], left, right)
            result = this if result is None else self._b.and_(result, this)
            left = right
        return result

    def _value_boolop(self, node: ast.BoolOp) -> Any:
        """Later operands are looked at only where the earlier ones leave it open."""
        after = self._block("decided")
        settled = I1(0 if isinstance(node.op, ast.And) else 1)
        arrivals = []
        for operand in node.values[:-1]:
            value = self._truth(operand)
            arrivals.append((settled, self._b.block))
            further = self._block("further")
            ways = (further, after) if isinstance(node.op, ast.And) else (after, further)
            self._b.cbranch(value, *ways)
            self._b.position_at_end(further)
        value = self._truth(node.values[-1])
        arrivals.append((value, self._b.block))
        self._b.branch(after)
        return self._join(after, arrivals)

    def _value_ifexp(self, node: ast.IfExp) -> Any:
        then, other, after = self._block("then"), self._block("else"), self._block("after")
        self._b.cbranch(self._truth(node.test), then, other)
        arrivals = []
        for block, branch in ((then, node.body), (other, node.orelse)):
            self._b.position_at_end(block)
            value = self._value(branch)
            arrivals.append((self._as_int(value, branch), self._b.block))
            self._b.branch(after)
        return self._join(after, arrivals)

    def _join(self, block: Any, arrivals: list[tuple[Any, Any]]) -> Any:
        self._b.position_at_end(block)
        joined = self._b.phi(arrivals[0][0].type)
        for value, origin in arrivals:
            joined.add_incoming(value, origin)
        return joined

    def _value_call(self, node: ast.Call) -> Any:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self._refuse(node, "plain calls only")
        name = node.func.id
        if name in ("min", "max"):
            return self._extreme("<" if name == "min" else ">", [self._int(part) for part in node.args])
        if name == "int":
            return self._int(node.args[0])
        if name == "bool":
            return self._truth(node.args[0])
        if name == "len":
            table = self._value(node.args[0])
            if not isinstance(table, Table):
                raise self._refuse(node, "only tables have a length")
            return self._directory(self._layout.slots[table.name] + 1)
        if name == "soon":
            return self._prefetch(self._record(node.args[0]))
        function = self._globals.get(name)
        if not callable(function):
            raise self._refuse(node, "no such function")
        made = self._module.function(function)
        if len(node.args) != len(made.args):
            raise self._refuse(node, f"{len(made.args)} arguments expected")
        return self._b.call(made, [self._argument(a, p.type) for a, p in zip(node.args, made.args, strict=True)])

    def _prefetch(self, record: Record) -> None:
        """Fetch a record into the cache that will be written soon; says nothing of its content."""
        word = ir.IntType(32)
        signature = ir.FunctionType(VOID, [POINTER, word, word, word])
        fetch = self._module.module.globals.get("llvm.prefetch.p0")
        fetch = fetch or ir.Function(self._module.module, signature, "llvm.prefetch.p0")
        self._b.call(fetch, [record.address, word(1), word(3), word(1)])

    def _argument(self, node: ast.expr, kind: Any) -> Any:
        if kind == POINTER:
            if not (isinstance(node, ast.Name) and node.id == "w"):
                raise self._refuse(node, "the world is `w`")
            return self._world
        return self._truth(node) if kind == I1 else self._int(node)

    def _extreme(self, than: str, values: list[Any]) -> Any:
        best = values[0]
        for value in values[1:]:
            best = self._b.select(self._b.icmp_signed(than, value, best), value, best)
        return best
