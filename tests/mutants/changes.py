"""Small wrong versions of a module, one change each."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Final, NamedTuple


class Mutant(NamedTuple):
    """`tree` differs from the module in one place: in a statement on these lines, which stands in a
    function, or is executed once as the module is imported.
    """

    line: int
    change: str
    tree: ast.Module
    lines: range
    in_function: bool


_OTHER: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
_OTHER_CALL: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


def mutants(source: str) -> Iterator[Mutant]:
    """Every version of a module with one change in its code.

    Comparisons, arithmetic and conditions are turned around, numbers change by one, and statements
    and conditions of comprehensions are left out. What can't be seen from outside stays: texts,
    annotations, assertions; and so do a module's constants, which tests import.
    """
    tree = ast.parse(source)
    for path, node in _nodes(tree, ()):
        for changed in _versions(node):
            version = copy.deepcopy(tree)
            _put(version, path, changed)
            ast.fix_missing_locations(version)
            change = f"{ast.unparse(node)} -> {ast.unparse(changed)}"
            line = node.target.lineno if isinstance(node, ast.comprehension) else node.lineno
            yield Mutant(line, change, version, *_place(tree, path))


_Path = tuple[tuple[str, int | None], ...]


def _nodes(node: ast.AST, path: _Path) -> Iterator[tuple[_Path, ast.AST]]:
    yield path, node
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return
    if isinstance(node, ast.AnnAssign) and "Final" in ast.unparse(node.annotation):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        if name == "keywords" and isinstance(node, ast.ClassDef):
            continue
        if isinstance(value, ast.AST):
            yield from _nodes(value, (*path, (name, None)))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _nodes(item, (*path, (name, index)))


def _place(tree: ast.AST, path: _Path) -> tuple[range, bool]:
    """The lines of the innermost statement, and whether that stands in a function."""
    lines, in_function = range(0), False
    for field, place in path:
        in_function |= isinstance(tree, ast.FunctionDef | ast.Lambda) and field == "body"
        child = getattr(tree, field)
        tree = child if place is None else child[place]
        if isinstance(tree, ast.stmt):
            lines = range(tree.lineno, (tree.end_lineno or tree.lineno) + 1)
    return lines, in_function


def _put(tree: ast.AST, path: _Path, changed: ast.AST) -> None:
    *above, (name, index) = path
    for field, place in above:
        child = getattr(tree, field)
        tree = child if place is None else child[place]
    if index is None:
        setattr(tree, name, changed)
    else:
        getattr(tree, name)[index] = changed


def _versions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[first, *rest]) if type(first) in _OTHER:
            yield _like(node, ops=[_OTHER[type(first)](), *rest])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _OTHER:
            yield _like(node, op=_OTHER[type(op)]())
        case ast.AugAssign(op=op) if type(op) in _OTHER:
            yield _like(node, op=_OTHER[type(op)]())
            yield ast.Pass()
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _OTHER_CALL:
            yield _like(node, func=ast.Name(_OTHER_CALL[name], ast.Load()))
        case ast.If(test=test) | ast.IfExp(test=test):
            yield _like(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.comprehension(ifs=[_, *rest]):
            yield _like(node, ifs=rest)
        case ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break() | ast.Return(value=None):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete():
            yield ast.Pass()


def _like(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
