"""Operations on vectors for the innermost steps of kernels, written with Python's operators and emitted as LLVM code.

numba takes about a millisecond to compile each operation of a kernel, and LLVM longer to find the vectors in a loop, so
a kernel of a thousand operations takes seconds to compile. Here, the innermost steps are Python functions that run when
a kernel is compiled, and emit its vector instructions:

    @operation()
    def add_line(v, n, target, to, source, at):
        for i in v.each(n):
            target[to + i] = target[to + i] + source[at + i]

A kernel calls it as `add_line(n, a, 0, b, 8)`. In it, numbers are `Value`s, arrays are `Pointer`s to contiguous memory
without bounds, and a tuple stands for its length, a Python integer. Python's own loops and conditions unroll and select
code.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 8  # floats in a vector; processors with narrower registers use several
FAST = ("contract", "nnan", "nsz")  # fused multiply-add, but no reordering
FLOAT, INT = ir.FloatType(), ir.IntType(64)


class Value:
    """A number or a vector of numbers in the emitted code. Numbers are repeated where the other operand is a vector."""

    def __init__(self, emitter: Emitter, value: Any) -> None:
        self.emitter, self.value = emitter, value

    @property
    def type(self) -> Any:
        return self.value.type

    @property
    def is_float(self) -> bool:
        return bool(getattr(self.type, "element", self.type) == FLOAT)

    def _binary(self, other: Any, for_floats: str, for_integers: str, swap: bool = False) -> Value:
        one, two = self.emitter.match(self, other)
        a, b = (two, one) if swap else (one, two)
        if not one.is_float:
            return Value(self.emitter, getattr(self.emitter.builder, for_integers)(a.value, b.value))
        return Value(
            self.emitter, getattr(self.emitter.builder, for_floats)(a.value, b.value, flags=self.emitter.flags)
        )

    def __add__(self, other: Any) -> Value:
        return self._binary(other, "fadd", "add")

    def __sub__(self, other: Any) -> Value:
        return self._binary(other, "fsub", "sub")

    def __mul__(self, other: Any) -> Value:
        return self._binary(other, "fmul", "mul")

    def __truediv__(self, other: Any) -> Value:
        return self._binary(other, "fdiv", "")

    def __rshift__(self, other: Any) -> Value:
        return self._binary(other, "", "ashr")

    def __and__(self, other: Any) -> Value:
        return self._binary(other, "", "and_")

    def __radd__(self, other: Any) -> Value:
        return self._binary(other, "fadd", "add", swap=True)

    def __rsub__(self, other: Any) -> Value:
        return self._binary(other, "fsub", "sub", swap=True)

    def __rmul__(self, other: Any) -> Value:
        return self._binary(other, "fmul", "mul", swap=True)

    def __rtruediv__(self, other: Any) -> Value:
        return self._binary(other, "fdiv", "", swap=True)

    def __lt__(self, other: Any) -> Value:
        return self._compare("<", other)

    def __gt__(self, other: Any) -> Value:
        return self._compare(">", other)

    def equals(self, other: Any) -> Value:
        return self._compare("==", other)

    def _compare(self, operator: str, other: Any) -> Value:
        one, two = self.emitter.match(self, other)
        builder = self.emitter.builder
        if one.is_float:
            return Value(self.emitter, builder.fcmp_ordered(operator, one.value, two.value, flags=self.emitter.flags))
        return Value(self.emitter, builder.icmp_signed(operator, one.value, two.value))


class Pointer:
    """An array in the emitted code. An item is a number, or a vector of neighbours inside `chunks` and `each`."""

    def __init__(self, emitter: Emitter, data: Any, width: int | None = None) -> None:
        self.emitter, self.data, self.width = emitter, data, width
        self.element = data.type.pointee

    def __getitem__(self, index: Any) -> Value:
        """Load an item. Integers are widened to 32 bits, or more if they have more."""
        value = self.emitter.builder.load(self._address(index), align=self._align())
        return Value(self.emitter, value if self.element == FLOAT else self._widen(value))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store an item. Integers are narrowed to the array's type."""
        builder, address = self.emitter.builder, self._address(index)
        stored = self.emitter.match_type(value, self._item_type() if self.element == FLOAT else self._wide_type()).value
        if self.element != FLOAT and self.element.width < 32:
            stored = builder.trunc(stored, self._item_type())
        builder.store(stored, address, align=self._align())

    def numbers(self) -> Pointer:
        """The same array, with an item that is a number everywhere."""
        return Pointer(self.emitter, self.data, 1)

    def as_floats(self) -> Pointer:
        """The same memory as an array of floats."""
        return Pointer(self.emitter, self.emitter.builder.bitcast(self.data, FLOAT.as_pointer()), self.width)

    def as_integers(self) -> Pointer:
        """The same memory as an array of 32-bit integers."""
        return Pointer(self.emitter, self.emitter.builder.bitcast(self.data, ir.IntType(32).as_pointer()), self.width)

    def vectors(self) -> Pointer:
        """The same array, with an item that is a vector everywhere."""
        return Pointer(self.emitter, self.data, WIDTH)

    def _item_type(self, element: Any = None) -> Any:
        return self.emitter.shape(element or self.element, self.width or self.emitter.width)

    def _wide_type(self) -> Any:
        return self._item_type(ir.IntType(max(32, self.element.width)))

    def _widen(self, value: Any) -> Any:
        return value if self.element.width >= 32 else self.emitter.builder.zext(value, self._wide_type())

    def _align(self) -> int:
        return 4 if self.element == FLOAT else self.element.width // 8

    def _address(self, index: Any) -> Any:
        builder = self.emitter.builder
        address = builder.gep(self.data, [self.emitter.match_type(index, INT).value])
        return builder.bitcast(address, self._item_type().as_pointer())


class Emitter:
    """What an operation receives first: loops over vectors, and everything that is not an operator."""

    def __init__(self, builder: Any, flags: Sequence[str]) -> None:
        self.builder, self.flags, self.width = builder, flags, 1

    def shape(self, element: Any, width: int) -> Any:
        return element if width == 1 else ir.VectorType(element, width)

    def match_type(self, value: Any, kind: Any) -> Value:
        """A value of this type: of a Python number, or a number repeated if the type is a vector."""
        element = getattr(kind, "element", kind)
        if isinstance(value, Value):
            number = value.value
        else:
            number = ir.Constant(element, float(value) if element == FLOAT else int(value))
        if number.type == kind:
            return Value(self, number)
        if number.type != element:  # integers of different sizes
            change = self.builder.trunc if number.type.width > element.width else self.builder.sext
            number = change(number, element)
        if not isinstance(kind, ir.VectorType):
            return Value(self, number)
        empty, first = ir.Constant(kind, ir.Undefined), ir.IntType(32)(0)
        one = self.builder.insert_element(empty, number, first)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
        return Value(self, self.builder.shuffle_vector(one, empty, mask))

    def match(self, one: Value, two: Any) -> tuple[Value, Value]:
        """Both operands in the type of the one that is a vector, if either is."""
        if isinstance(two, Value) and isinstance(two.type, ir.VectorType):
            return self.match_type(one, two.type), two
        if isinstance(two, Value) and getattr(two.type, "width", 0) > getattr(one.type, "width", 64):
            return self.match_type(one, two.type), two
        return one, self.match_type(two, one.type)

    def integers(self, value: int) -> Value:
        """A 32-bit integer, repeated for every float of a vector."""
        return self.match_type(value, self.shape(ir.IntType(32), self.width))

    def select(self, condition: Value, one: Any, two: Value) -> Value:
        """`one` where the condition holds, else `two`."""
        two = self.match_type(two, self.shape(getattr(two.type, "element", two.type), self.width))
        return Value(self, self.builder.select(condition.value, self.match_type(one, two.type).value, two.value))

    def multiply_add(self, one: Value, two: Value, three: Value) -> Value:
        """one * two + three, rounded once where the processor can."""
        return Value(
            self, self.builder.call(self._declare("llvm.fmuladd", one.type), [one.value, two.value, three.value])
        )

    def _declare(self, name: str, kind: Any) -> Any:
        return self.builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind] * 3))

    @contextlib.contextmanager
    def no_flags(self) -> Iterator[None]:
        """Emit operations that are computed exactly as they are written."""
        before, self.flags = self.flags, ()
        try:
            yield
        finally:
            self.flags = before

    def least(self, one: Value, two: Value) -> Value:
        return self.select(two < one, two, one)

    def chunks(self, lanes: int) -> Iterator[Value]:
        """Loop over the lanes, a vector at a time, or one number if there is only one."""
        if lanes % WIDTH:
            for lane in range(lanes):
                yield Value(self, INT(lane))
            return
        yield from self._loop(0, lanes, WIDTH)

    def each(self, n: Value) -> Iterator[Value]:
        """Loop over n items, a vector at a time, and the last few one by one. The body is emitted twice."""
        even = n - (n & (WIDTH - 1))
        yield from self._loop(0, even, WIDTH)
        yield from self._loop(even, n, 1)

    def count(self, n: Value) -> Iterator[Value]:
        """Loop over n items one by one."""
        yield from self._loop(0, n, 1)

    def _loop(self, first: Any, stop: Any, step: int) -> Iterator[Value]:
        first, stop = self.match_type(first, INT), self.match_type(stop, INT)
        before, self.width = self.width, step
        with cgutils.for_range_slice(self.builder, first.value, stop.value, INT(step), INT) as (i, _):
            yield Value(self, i)
        self.width = before

    def transpose(self, rows: Sequence[Any]) -> list[Value]:
        """Transpose 8 x 8 floats."""
        vector, builder = ir.VectorType(FLOAT, 8), self.builder

        def shuffle(a: Any, b: Any, order: list[int]) -> Any:
            return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), 8), order))

        eight = [self.match_type(row, vector).value for row in rows]
        low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
        twos = [[shuffle(eight[i], eight[i + 1], order) for order in (low, high)] for i in (0, 2, 4, 6)]
        low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
        fours = [[shuffle(a, b, order) for a, b in zip(*pair, strict=True) for order in (low, high)]
                 for pair in (twos[:2], twos[2:])]  # fmt: skip
        low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
        return [Value(self, shuffle(a, b, order)) for order in (low, high) for a, b in zip(*fours, strict=True)]

    def extract(self, vector: Value, i: int) -> Value:
        """The i-th number of a vector."""
        return Value(self, self.builder.extract_element(vector.value, ir.IntType(32)(i)))

    def collect(self, numbers: Sequence[Any]) -> Value:
        """Make a vector of eight numbers."""
        vector = ir.Constant(ir.VectorType(FLOAT, 8), ir.Undefined)
        for i, number in enumerate(numbers):
            vector = self.builder.insert_element(vector, self.match_type(number, FLOAT).value, ir.IntType(32)(i))
        return Value(self, vector)


def operation(flags: Sequence[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """Make a function that emits code callable from numba functions. `flags` apply to all its operations on floats."""

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def typing(context: Any, *kinds: Any) -> Any:
            signature = types.void(*[types.intp if isinstance(kind, types.Integer) else kind for kind in kinds])

            def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                emitter = Emitter(builder, flags)
                function(
                    emitter, *[_operand(context, emitter, *pair) for pair in zip(signature.args, args, strict=True)]
                )
                return context.get_dummy_value()

            return signature, code

        return intrinsic(typing)

    return decorate


def _operand(context: Any, emitter: Emitter, kind: Any, argument: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        return len(kind)
    if isinstance(kind, types.Array):
        assert kind.layout == "C", "an operation reads and writes contiguous arrays"
        return Pointer(emitter, context.make_array(kind)(context, emitter.builder, argument).data)
    return Value(emitter, argument)
