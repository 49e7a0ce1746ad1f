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
"""A mutant lives where no test fails in this time."""
HANGS = 100
"""Seconds after which a single test fails: the mutant made it hang."""
NO_TESTS = 5
"""What pytest ends with where it ran none: nothing noticed the mutant."""
PAIRS = (
    "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult Div, FloorDiv Mult, Break Continue"
)
SWAPS = {getattr(ast, a): getattr(ast, b) for pair in PAIRS.split(", ") for a, b in (pair.split(),)}
SWAPS = {b: a for a, b in SWAPS.items()} | SWAPS
UNCHANGED = (ast.Raise, ast.ClassDef, ast.JoinedStr)
ANNOTATIONS = ("annotation", "returns")
PYTEST = [
    "-m",
    "pytest",
    "-x",
    "-q",
    f"--timeout={HANGS}",
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
            isinstance(value, ast.Constant) and (value.value is None or value.value is False)
        ):
            return ast.Return(ast.Constant(None))
        case ast.Break() | ast.Continue():
            return SWAPS[type(node)]()
    return None


def places(node: ast.AST, *, inside: bool = False) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Parent, field and index of what can be changed in functions.

    Errors and texts are left alone, as are `strict=True` (an assertion) and `return False` (no other truth than None).
    """
    if isinstance(node, ast.keyword) and ast.unparse(node) == "strict=True":
        return
    for field, value in ast.iter_fields(node):
        if field in ANNOTATIONS:
            continue
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
    """The test files that are named after a module, first of all, hold a test named after it or import it.

    Files of other folders count where they are named after it and import it. Where there are none, those that import
    it anywhere, and all of its folder.
    """
    inside = path.relative_to(ROOT / "rollout_traces").with_suffix("")
    name = inside.name.rstrip("_")
    everywhere = sorted((ROOT / "tests").rglob("test_*.py"))
    folder = ROOT / "tests" / inside.parts[0]
    is_loose = len(inside.parts) == 1
    files = [f for f in everywhere if (f.parent == ROOT / "tests" if is_loose else folder in f.parents)]
    package = r"\.".join(("rollout_traces", *inside.parts[:-1]))
    imports = re.compile(rf"{package}\.{inside.name}\b|from {package} import (\([^)]*|.*)\b{inside.name}\b")
    tells = re.compile(rf"{imports.pattern}|def test_{name}\(")
    elsewhere = [f for f in everywhere if f not in files and imports.search(f.read_text("utf-8"))]
    own = [f for f in files if f.stem == f"test_{name}" or tells.search(f.read_text("utf-8"))]
    own += [f for f in elsewhere if f.stem == f"test_{name}"]
    own.sort(key=lambda f: f.stem != f"test_{name}")
    return [str(f.relative_to(ROOT)) for f in own or [*elsewhere, *files]]


def fails(copy: Path, path: Path, *options: str) -> bool:
    """Whether one of the tests nearest to a module fails in a copy of the repository."""
    variables = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *PYTEST, *options, *nearest(path)]
    try:
        ended = subprocess.run(command, cwd=copy, env=variables, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode not in (0, NO_TESTS)


def is_killed(copy: Path, path: Path, source: str) -> bool | None:
    """Whether a nearest test fails with the changed module; None where that test fails without the change too."""
    place = copy / path.relative_to(ROOT)
    shutil.rmtree(copy / ".pytest_cache", ignore_errors=True)
    place.write_text(source, "utf-8")
    try:
        if not fails(copy, path):
            return False
    finally:
        shutil.copy2(path, place)
    return None if fails(copy, path, "--last-failed") else True


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
            outcome = is_killed(copy, path, made[0])
            if outcome is None:
                print(f"not decided: {path.relative_to(ROOT)}:{made[1]}", flush=True)
                continue
            tried += 1
            killed += outcome
            if not outcome:
                print(f"lived: {path.relative_to(ROOT)}:{made[1]}", flush=True)
    print(f"{killed} of {tried} mutants were killed")


if __name__ == "__main__":
    main()
