"""Only the rooms for other libraries touch what these don't promise.

Imports of the libraries are import-linter's, in `make check`. Their objects are everywhere, so here
each file of the worker is read: a private name that stands after a dot must be one of its own.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIBRARIES = ("mlx_lm", "mlx_vlm", "mlx_embeddings", "transformers")
ENDS = ("/", ".py", "_encoders.py")
ROOMS = tuple(f"worker/{library}{end}" for library in LIBRARIES for end in ENDS)
OURS = ("worker", "protocol")
# Public, as their documentation says: of named tuples.
TUPLES = ("_replace", "_asdict", "_fields", "_make")
# Where something was defined is a part of its source; and so is this text itself.
SOURCE = ("__module__", "__globals__", "__code__", "getsource", "getsourcefile", "getsourcelines")
BY_NAME = ("getattr", "setattr", "hasattr", "delattr")


def private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.endswith("__")


def found_in(source: str) -> Iterator[tuple[int, str]]:
    """The lines of what a file must not have, and what it is."""
    tree = ast.parse(source)
    own = _defined(tree).union(*map(_defined, _bases(tree)))
    modules = _modules(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if module.split(".")[0] not in OURS:
                    wrong = [alias.name for alias in names if private(alias.name)]
                    yield from ((node.lineno, f"{module}.{text}") for text in wrong)
            case ast.Attribute(value=value, attr=attr):
                if attr in SOURCE:
                    yield node.lineno, ast.unparse(node)
                elif private(attr) and attr not in own and attr not in TUPLES:
                    root = value.id if isinstance(value, ast.Name) else None
                    if modules.get(root or "", "").split(".")[0] not in sys.stdlib_module_names:
                        yield node.lineno, ast.unparse(node)
                elif isinstance(node.ctx, ast.Store) and _root(value) in modules:
                    yield node.lineno, f"{ast.unparse(node)} ="
            case ast.Call(func=ast.Name(id="setattr"), args=[of, *_]) if _root(of) in modules:
                yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Name(id=function), args=[_, ast.Constant(value=name), *_]):
                if function in BY_NAME and private(name) and name not in own:
                    yield node.lineno, f"{function} {name}"
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[name, *_]):
                if _begins(name).split(".")[0] in LIBRARIES:
                    yield node.lineno, ast.unparse(node)


def _defined(tree: ast.Module) -> set[str]:
    """Private names that a file gives to functions, classes and attributes of its own."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name, body=body):
                names.add(name)
                names |= {name for stmt in body for name in _assigned(stmt)}
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr, ctx=ast.Store()):
                names.add(attr)
    return names


def _bases(tree: ast.Module) -> Iterator[ast.Module]:
    """Files of the worker from which a class inherits here, and those of their classes in turn."""
    bases = {
        base.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                file = ROOT / f"{module.replace('.', '/')}.py"
                if file.is_file() and bases & {name.name for name in names}:
                    base = ast.parse(file.read_text("utf-8"))
                    yield base
                    yield from _bases(base)


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _modules(tree: ast.Module) -> dict[str, str]:
    """Modules of others by the names that they have in a file."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                module = name.name if name.asname else name.name.split(".")[0]
                found[name.asname or module] = module
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _begins(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return _begins(node.values[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_no_other_file_touches_a_private_name() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "worker").rglob("*.py"))]
    others = [file for file in files if not file.startswith(ROOMS)]
    assert len(others) > 30
    assert len(files) - len(others) > 5
    found = [
        f"{other}:{line}: {text}"
        for other in others
        for line, text in found_in((ROOT / other).read_text("utf-8"))
    ]
    assert not found, "\n".join(["Its place is one of the rooms for other libraries:", *found])


@pytest.mark.parametrize(
    "line",
    [
        "generator._generation_batch",
        "self.batch._current_tokens = None",
        "super()._step()",
        "getattr(tokenizer, '_tokenizer', tokenizer)",
        "setattr(batch, '_matchers', [])",
        "from mlx_lm.utils import _get_classes",
        "from mlx_lm import _version",
        "import mlx.core as mx\nmx.load = note",
        "import mlx.core as mx\nmx.distributed.all_sum = note",
        "import mlx.core as mx\nsetattr(mx, name, note)",
        "import mlx.core as mx\nmx._private()",
        "importlib.import_module('mlx_lm.models.llama')",
        "importlib.import_module(f'mlx_embeddings.models.{name}')",
        "parser.__module__.rpartition('.')",
        "inspect.getsource(model)",
    ],
)
def test_it_is_found(line: str) -> None:
    assert list(found_in(line))


@pytest.mark.parametrize(
    "line",
    [
        "import os\nos._exit(1)",
        "row._replace(tokens=1)",
        "self._own = 1\nother._own",
        "class A:\n    _own = 1\nA()._own",
        "from worker.vision import _own",
        "def __init__(self): super().__init__()",
        "setattr(model, name, None)",
        "import mlx.core as mx\nmx.eval(a)",
    ],
)
def test_it_is_ones_own(line: str) -> None:
    assert not list(found_in(line))
