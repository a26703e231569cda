"""Two steps on eight numbers at once that a compiler does not find by itself, in LLVM's own words for any processor."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

EIGHT = ir.VectorType(ir.FloatType(), 8)
ORDER = ir.VectorType(ir.IntType(32), 8)


def _eight(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Where the eight numbers array[at : at + 8] are."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), EIGHT.as_pointer())


def _turn8(typing: Any, target: Any, to: Any, apart: Any, source: Any, at: Any, stride: Any) -> Any:
    """target[to + i * apart + j] = source[at + j * stride + i], for i and j below 8; float32, nothing is checked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, to, apart, source, at, stride = args

        def row(kind: Any, array: Any, first: Any, step: Any, i: int) -> Any:
            place = builder.add(first, builder.mul(step, ir.Constant(step.type, i)))
            return _eight(context, builder, kind, array, place)

        def mix(a: Any, b: Any, order: list[int]) -> Any:
            return builder.shuffle_vector(a, b, ir.Constant(ORDER, order))

        rows = [builder.load(row(signature.args[3], source, at, stride, i), align=4) for i in range(8)]
        low, high = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
        twos = [[mix(rows[i], rows[i + 1], order) for order in (low, high)] for i in (0, 2, 4, 6)]
        low, high = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
        fours = [[mix(a, b, order) for a, b in zip(*pair, strict=True) for order in (low, high)]
                 for pair in (twos[:2], twos[2:])]  # fmt: skip
        low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
        turned = [mix(a, b, order) for order in (low, high) for a, b in zip(*fours, strict=True)]
        for i, vector in enumerate(turned):
            builder.store(vector, row(signature.args[0], target, to, apart, i), align=4)
        return context.get_dummy_value()

    return types.void(target, types.intp, types.intp, source, types.intp, types.intp), code


def _add8(typing: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """target[to : to + 8] += source[at : at + 8]; float32, nothing is checked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, to, source, at = args
        place = _eight(context, builder, signature.args[0], target, to)
        more = builder.load(_eight(context, builder, signature.args[2], source, at), align=4)
        builder.store(builder.fadd(builder.load(place, align=4), more), place, align=4)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp), code


turn8: Any = intrinsic(_turn8)
add8: Any = intrinsic(_add8)
