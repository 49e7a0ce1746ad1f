"""Joins the inspector's script modules into one script.

The modules import by relative path and export declarations by name; nothing else is needed, so nothing else is
read: each module becomes a function that returns its exports, in the order of its imports.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping

from rollout_traces.errors import RolloutTracesError

_IMPORT = re.compile(
    r'^import\s+(?P<names>\{[^}]*\}|\*\s+as\s+\w+)\s+from\s+"(?P<path>[^"]+)";[ \t]*$', re.MULTILINE
)
_EXPORT = re.compile(r"^export\s+(?=(?:async\s+)?(?:function\*?|class|const)\s+(?P<name>\w+))", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


class InlineError(RolloutTracesError):
    """A module that cannot be joined with the others."""


def inlined(modules: Mapping[str, str], entry: str) -> str:
    """One script of a module and all that it imports.

    Args:
        modules: source by path, with `/`.
        entry: the path of the module that is run last.

    Returns:
        A classic script; its modules' names stay inside it.

    Raises:
        InlineError: an import leads nowhere or around in a circle, or a form of import or export is used that
            this does not read.
    """
    text, _ = _functions(modules, [entry])
    return f'(() => {{\n"use strict";\n{text}\n}})();\n'


def joined(modules: Mapping[str, str], entries: Mapping[str, str]) -> str:
    """One module of several and all that they import, each once: a browser asks once instead of dozens of times.

    Args:
        modules: source by path, with `/`.
        entries: path of a module by the name under which it is found.

    Returns:
        A module that exports `entries`, an object: the exports of each entry by its name.

    Raises:
        InlineError: as of `inlined`.
    """
    text, numbers = _functions(modules, entries.values())
    named = ", ".join(f"{json.dumps(name)}: module{numbers[path]}" for name, path in entries.items())
    return f"{text}\nexport const entries = {{ {named} }};\n"


def _functions(modules: Mapping[str, str], entries: Iterable[str]) -> tuple[str, dict[str, int]]:
    """The modules that entries need as functions, in the order of their imports, and each one's number."""
    order: list[str] = []
    for entry in entries:
        _visit(modules, entry, order, ())
    numbers = {path: number for number, path in enumerate(order)}
    return "\n".join(_as_function(path, modules[path], numbers) for path in order), numbers


def _visit(modules: Mapping[str, str], path: str, order: list[str], way: tuple[str, ...]) -> None:
    if path in order:
        return
    if path in way:
        raise InlineError(f"modules import each other in a circle: {' > '.join((*way, path))}.")
    if path not in modules:
        raise InlineError(f"{way[-1] if way else 'the page'} imports {path}, which is not there.")
    for match in _IMPORT.finditer(modules[path]):
        _visit(modules, _resolved(path, match["path"]), order, (*way, path))
    order.append(path)


def _resolved(importer: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


def _as_function(path: str, source: str, numbers: Mapping[str, int]) -> str:
    def imported(match: re.Match[str]) -> str:
        number = numbers[_resolved(path, match["path"])]
        names = match["names"]
        taken = names.split()[-1] if names.startswith("*") else names.replace(" as ", ": ")
        return f"const {taken} = module{number};"

    exports = [match["name"] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(imported, source))
    left = _LEFT.search(body)
    if left is not None:
        raise InlineError(f"{path}: {left[0][:80]!r} is no form of import or export that is inlined.")
    return (
        f"// {path}\nconst module{numbers[path]} = (() => {{\n{body}\n"
        f"return {{ {', '.join(exports)} }};\n}})();"
    )
