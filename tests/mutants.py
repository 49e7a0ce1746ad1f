"""Mutants: one operator, constant or return of the package is changed at a time, and the tests nearest to it have to fail.

python -m tests.mutants --mutants 60
python -m tests.mutants --mutants 60 --seed 4711 --folder rollout_traces/store
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300
"""After so long a mutant is killed: it made a test hang."""
PAIRS = (
    "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult Div, FloorDiv Mult, Break Continue"
)
SWAPS = {getattr(ast, a): getattr(ast, b) for pair in PAIRS.split(", ") for a, b in (pair.split(),)}
SWAPS = {b: a for a, b in SWAPS.items()} | SWAPS
UNCHANGED = (ast.Raise, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.JoinedStr)
PYTEST = [
    "-m",
    "pytest",
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "-m",
    "not slow and not trainers and not browser",
]


def changed(node: ast.AST) -> ast.AST | None:
    """What a mutant has in place of a node; None where the node is not one to change."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            return ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)
        case ast.BoolOp():
            return ast.BoolOp(SWAPS[type(node.op)](), node.values)
        case ast.BinOp() if type(node.op) in SWAPS:
            return ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.IfExp():
            return ast.IfExp(node.test, node.orelse, node.body)
        case ast.Constant(value=bool()):
            return ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            return ast.Constant(node.value + 1)
        case ast.Return(value=value) if value and not (
            isinstance(value, ast.Constant) and value.value is None
        ):
            return ast.Return(ast.Constant(None))
        case ast.Break() | ast.Continue():
            return SWAPS[type(node)]()
    return None


def places(node: ast.AST, *, inside: bool = False) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Parent, field and index of what can be changed in functions; errors and texts are left alone."""
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or (inside and isinstance(child, UNCHANGED)):
                continue
            if inside and changed(child) is not None:
                yield node, field, index
            is_body = field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from places(child, inside=inside or is_body)


def mutant(path: Path, draw: random.Random) -> tuple[str, str] | None:
    """The source of a changed module and what was changed; None where it holds nothing to change."""
    tree = ast.parse(path.read_text("utf-8"))
    found = list(places(tree))
    if not found:
        return None
    parent, field, index = draw.choice(found)
    siblings = getattr(parent, field)
    old = siblings if index is None else siblings[index]
    new = ast.copy_location(changed(old), old)  # type: ignore[type-var]
    told = f"{old.lineno}: {ast.unparse(old)}  ->  {ast.unparse(new)}"
    if index is None:
        setattr(parent, field, new)
    else:
        siblings[index] = new
    return ast.unparse(ast.fix_missing_locations(tree)), told


def nearest(path: Path) -> list[str]:
    """The test files that mirror a module or import it by its name; else those of its folder."""
    inside = path.relative_to(ROOT / "rollout_traces").with_suffix("")
    is_loose = len(inside.parts) == 1
    files = sorted(
        (ROOT / "tests").glob("test_*.py")
        if is_loose
        else (ROOT / "tests" / inside.parts[0]).rglob("test_*.py")
    )
    package = r"\.".join(("rollout_traces", *inside.parts[:-1]))
    imports = re.compile(rf"{package}\.{inside.name}\b|from {package} import (\([^)]*|.*)\b{inside.name}\b")
    own = [f for f in files if f.stem == f"test_{inside.name}" or imports.search(f.read_text("utf-8"))]
    return [str(f.relative_to(ROOT)) for f in own or files]


def survives(copy: Path, path: Path, source: str) -> bool:
    """Whether the nearest tests pass with the changed module in a copy of the repository."""
    place = copy / path.relative_to(ROOT)
    place.write_text(source, "utf-8")
    variables = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *PYTEST, *nearest(path)]
    try:
        return (
            subprocess.run(command, cwd=copy, env=variables, capture_output=True, timeout=SECONDS).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        shutil.copy2(path, place)


def main() -> None:
    """Draws mutants, tries each, prints those that lived and how many were killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10**6), help="drawn where it is not given"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "rollout_traces")
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    modules = sorted(asked.folder.resolve().rglob("*.py"))
    sizes = [path.stat().st_size for path in modules]
    print(f"seed {asked.seed}", flush=True)
    killed = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".mypy_cache")
        )
        while tried < asked.mutants:
            path = draw.choices(modules, sizes)[0]
            made = mutant(path, draw)
            if made is None:
                continue
            tried += 1
            if survives(copy, path, made[0]):
                print(f"lived: {path.relative_to(ROOT)}:{made[1]}", flush=True)
            else:
                killed += 1
    print(f"{killed} of {tried} mutants were killed")


if __name__ == "__main__":
    main()
