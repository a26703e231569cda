"""The mutants of a module: copies of its syntax tree with one small mistake each."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip
SWAPPED = [
    ("min", "max"), ("any", "all"), ("floor", "ceil"), ("minimum", "maximum"), ("argmin", "argmax"), ("amin", "amax"),
]  # fmt: skip
NAMES = dict(SWAPPED) | {b: a for a, b in SWAPPED}
UNWRAPPED = ("nextafter", "abs", "sorted", "clamp_", "ceil", "floor")  # the value goes through as it is
WORDS = {"one-sided": "two-sided", "two-sided": "one-sided", "left": "right", "right": "left"}
TEXT = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict)  # adding to them is no arithmetic
WORDY = ("describe", "__repr__", "__str__", "_refusal", "_shorten", "format_", "_change", "_differs")
MESSAGES = ("ConfigurationError", "PprsError", "Finding", "suggest", "warn", "format_level", "print")

Key = tuple[str, str, str, str, int]


@dataclass(frozen=True)
class Mutant:
    """One change, named by where it is and what it does, so that it keeps its name when lines move."""

    module: str
    function: str
    before: str
    after: str
    nth: int  # among equal changes in a function
    lines: tuple[int, int]  # of the statement

    @property
    def key(self) -> Key:
        return self.module, self.function, self.before, self.after, self.nth


def rank(key: Key, seed: int) -> str:
    """The place of a mutant in the sample: a digest, so that a change elsewhere leaves the sample as it is."""
    return hashlib.sha256(repr((seed, *key)).encode()).hexdigest()


Change = Callable[[], ast.Module]


def list_mutants(module: str, source: str) -> list[tuple[Mutant, Change]]:
    """Return all mutants of a source, each with a function that returns the changed tree."""
    tree, found, seen = ast.parse(source), [], Counter[tuple[str, str, str]]()
    for number, site in enumerate(_Sites().find(tree)):
        before, after = (ast.unparse(node).splitlines()[0][:100] for node in (site.old, site.new))
        name = (site.function, before, after)
        mutant = Mutant(module, *name, seen[name], site.lines)
        seen[name] += 1
        found.append((mutant, lambda number=number: _change(source, number)))
    return found


def _change(source: str, number: int) -> ast.Module:
    tree = ast.parse(source)
    next(site for i, site in enumerate(_Sites().find(tree)) if i == number).apply()
    return ast.fix_missing_locations(tree)


_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class _Site:
    holder: ast.AST
    field: str
    index: int | None
    old: ast.AST
    new: ast.AST
    function: str
    lines: tuple[int, int]

    def apply(self) -> None:
        new = ast.copy_location(self.new, self.old)
        if self.index is None:
            setattr(self.holder, self.field, new)
        else:
            getattr(self.holder, self.field)[self.index] = new


class _Sites:
    """Walks a tree in the order of its source, with the function and the statement that it is in."""

    def find(self, node: ast.AST, function: str = "", lines: tuple[int, int] = (0, 0)) -> Iterator[_Site]:
        for field, index, child in _children(node):
            if _is_silent(node, field, child):
                continue
            inner, span = function, lines
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                if child.name.startswith(WORDY):
                    continue
                inner = f"{function}.{child.name}".lstrip(".")
            if isinstance(child, ast.stmt):
                span = _span(child)
            for new in _alternatives(child):
                yield _Site(node, field, index, child, new, inner, span)
            if not isinstance(child, ast.Raise | ast.JoinedStr):
                yield from self.find(child, inner, span)


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield field, None, value
        elif isinstance(value, list):
            yield from ((field, i, child) for i, child in enumerate(value) if isinstance(child, ast.AST))


def _is_silent(node: ast.AST, field: str, child: ast.AST) -> bool:
    """Whether nothing in this part can change what is computed: annotations, messages, imports."""
    if field in ("annotation", "returns", "decorator_list", "bases"):
        return True
    if isinstance(child, ast.arguments) or (isinstance(node, ast.ClassDef) and not isinstance(child, _DEFINITIONS)):
        return True  # defaults and what a class holds are made by the import, which a child does not repeat
    if isinstance(node, ast.Module) and not isinstance(child, (*_DEFINITIONS, ast.Assign)):
        return True
    if isinstance(child, ast.Assert | ast.Import | ast.ImportFrom | ast.AnnAssign) and not getattr(child, "value", 0):
        return True
    return isinstance(child, ast.Call) and _called(child) in MESSAGES


def _span(statement: ast.stmt) -> tuple[int, int]:
    """Its lines, without those of a body."""
    body = getattr(statement, "body", None)
    if isinstance(statement, ast.If | ast.While | ast.For | ast.With) and body:
        return statement.lineno, max(statement.lineno, body[0].lineno - 1)
    return statement.lineno, statement.end_lineno or statement.lineno


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _alternatives(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                yield _with(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
        is_text = any(isinstance(s, TEXT) or (isinstance(s, ast.Constant) and type(s.value) is str) for s in sides)
        if type(node.op) in ARITHMETIC and not is_text:
            yield _with(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            yield rest[0] if len(rest) == 1 else _with(node, values=rest)
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not | ast.USub):
            yield node.operand
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.If):
        if not isinstance(node.test, ast.Compare | ast.BoolOp):
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            yield _with(node, test=negated)
    elif isinstance(node, ast.Constant):
        yield from (ast.Constant(value) for value in _other_values(node.value))
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        # Code can only be exchanged for code with the same free variables, and super() has one.
        yield ast.Expr(ast.Name("__class__", ast.Load())) if "super" in names else ast.Pass()


def _other_values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value * 2, value / 2] if value else [1.0]
    return [WORDS[value]] if isinstance(value, str) and value in WORDS else []


def _other_calls(call: ast.Call) -> Iterator[ast.AST]:
    name = _called(call)
    if name in NAMES:
        function = call.func
        named = ast.Attribute(function.value, NAMES[name], ast.Load()) if isinstance(function, ast.Attribute) else None
        yield _with(call, func=ast.copy_location(named or ast.Name(NAMES[name], ast.Load()), function))
    if name in UNWRAPPED and call.args and not isinstance(call.args[0], ast.GeneratorExp):
        yield call.args[0]
    if name == "range" and len(call.args) == 1:
        yield _with(call, args=[ast.BinOp(call.args[0], ast.Sub(), ast.Constant(1))])
