"""Two operations on vectors of eight floats that the compiler does not find itself, as portable LLVM intrinsics."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

VECTOR = ir.VectorType(ir.FloatType(), 8)
MASK = ir.VectorType(ir.IntType(32), 8)


def _vector_pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Return a pointer to array[at : at + 8] as a vector."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), VECTOR.as_pointer())


def _transpose8(typing: Any, target: Any, to: Any, apart: Any, source: Any, at: Any, stride: Any) -> Any:
    """Set target[to + i * apart + j] = source[at + j * stride + i] for i, j < 8. float32, without bounds checks."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, to, apart, source, at, stride = args

        def row(kind: Any, array: Any, first: Any, step: Any, i: int) -> Any:
            place = builder.add(first, builder.mul(step, ir.Constant(step.type, i)))
            return _vector_pointer(context, builder, kind, array, place)

        def shuffle(a: Any, b: Any, order: list[int]) -> Any:
            return builder.shuffle_vector(a, b, ir.Constant(MASK, order))

        rows = [builder.load(row(signature.args[3], source, at, stride, i), align=4) for i in range(8)]
        low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
        twos = [[shuffle(rows[i], rows[i + 1], order) for order in (low, high)] for i in (0, 2, 4, 6)]
        low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
        fours = [[shuffle(a, b, order) for a, b in zip(*pair, strict=True) for order in (low, high)]
                 for pair in (twos[:2], twos[2:])]  # fmt: skip
        low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
        transposed = [shuffle(a, b, order) for order in (low, high) for a, b in zip(*fours, strict=True)]
        for i, vector in enumerate(transposed):
            builder.store(vector, row(signature.args[0], target, to, apart, i), align=4)
        return context.get_dummy_value()

    return types.void(target, types.intp, types.intp, source, types.intp, types.intp), code


def _add8(typing: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """Add source[at : at + 8] to target[to : to + 8]. float32, without bounds checks."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, to, source, at = args
        place = _vector_pointer(context, builder, signature.args[0], target, to)
        more = builder.load(_vector_pointer(context, builder, signature.args[2], source, at), align=4)
        builder.store(builder.fadd(builder.load(place, align=4), more), place, align=4)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp), code


transpose8: Any = intrinsic(_transpose8)
add8: Any = intrinsic(_add8)
