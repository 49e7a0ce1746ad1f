"""Data flows one way: which pipeline may import from which, who writes to Trackio, what runs without torch.

All imports are read from the source, those inside functions included. `docs/architecture.md` has the picture.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "rollout_traces"

ORDER = (
    ("errors",),
    ("model",),
    ("settings",),
    ("spool",),
    ("capture",),
    ("cluster",),
    ("ledger",),
    ("metrics", "decode"),
    ("flags",),
    ("analysis",),
    ("alarms",),
    ("trace",),
    ("sink",),
    ("steps",),
    ("worker",),
    ("logger",),
    ("stats",),
    ("sources",),
    ("integrations",),
    ("store",),
    ("export",),
    ("inspector",),
    ("doctor",),
    ("cli",),
)
"""The folders along the way of the data. A module imports from its own pipeline and from those above it."""

READING = ("store", "analysis", "export", "inspector")
"""The folders that read what is stored."""
READ_COMMANDS = (
    "list",
    "get",
    "stats",
    "export",
    "show",
    "share",
    "last",
    "explain",
    "events",
    "live",
    "prompts",
    "flips",
)
"""The commands that read; the others write, check the installation or start a trainer."""
READ_FROM = (
    "errors",
    "model",
    "settings",
    "ledger",
    "metrics",
    "flags",
    "alarms",
    "trace",
)
"""What the reading side takes from the writing side: plain data, how it is packed, and the metrics of a ledger."""
READS_MORE = {
    ("store.reading", "sources.trackio_traces"): "a trace of a trainer is known as an import knows it",
    ("store.logged_tables", "sources.formats.trl_parquet"): "a table of TRL is known as an import knows it",
    (
        "store.store",
        "sources.state",
    ): "the file that a rollout was imported from is read as an import reads it",
    (
        "store.store",
        "sources.formats.own_export",
    ): "a batch is handed back as an import of its rows hands it over",
    ("inspector.pages.health", "worker.recovery"): "Health says what waits in this node's spools",
    ("inspector.shared_file", "steps.redact"): "a shared file hides as a run's hook does",
}
"""Further imports of the reading side, and why."""

WRITE_PATH = (
    "settings",
    "capture",
    "spool",
    "cluster",
    "worker",
    "steps",
    "trace",
    "sink",
    "logger",
    "stats",
)
"""The folders of the write path, whose arrows the architecture page lists."""

MAY_IMPORT_INSPECTOR = (
    "cli.show",
    "cli.share",
    "cli.export",
    "cli.mcp",
    "cli.label",
    "cli.lanes",
    "cli.live",
)

TRACKIO_OUTSIDE_THE_SINK = {
    "doctor.storage": {"trackio.utils.TRACKIO_DIR"},
    "worker.recovery": {"trackio.utils"},
    "worker.main": {"trackio.utils"},
    "inspector.trackio_mount": {
        "trackio.asgi_app._invoke_handler",
        "trackio.asgi_app.upload_handler",
        "trackio.asgi_app.version_handler",
        "trackio.cas",
        "trackio.frontend_config.resolve_frontend_dir",
        "trackio.frontend_server.ASSETS_DIR",
        "trackio.frontend_server._inject_base_script",
        "trackio.frontend_server._prefix_absolute_refs",
        "trackio.server",
        "trackio.server.assert_can_stage_upload",
        "trackio.sqlite_storage.SQLiteStorage",
        "trackio.utils",
    },
    "logger.rank_client": {"trackio.utils"},
    "logger.pipeline": {"trackio.utils"},
    "logger.spool_client": {"trackio.utils"},
    "sources.importing": {"trackio.utils.TRACKIO_DIR"},
}
"""What modules outside `sink/` import of Trackio: its folder, the parts of its dashboard; nothing that
writes, but for its own functions that take what runs send, behind a token of theirs."""
WRITES = {"init", "log", "finish", "alert", "sync", "save", "delete_run", "delete_project", "import_csv"}
"""Names by which Trackio or a run of it is written to."""
OTHER_TRACKERS = "stats"
"""The pipeline that writes to trackers beside Trackio, whose runs are called runs too."""
HEAVY = ("torch", "transformers")


@dataclass(frozen=True)
class Import:
    """One import.

    Attributes:
        importer: the module that imports, without the package's name.
        target: what it imports; a module of ours without the package's name.
        ours: whether the target is ours.
        line: where.
        deferred: whether it stands inside a function.
    """

    importer: str
    target: str
    ours: bool
    line: int
    deferred: bool

    def __str__(self) -> str:
        return f"{self.importer} (line {self.line}) imports {self.target}"


@lru_cache(maxsize=1)
def sources() -> dict[str, ast.Module]:
    """Every module's tree by its name without the package's; the package itself is `__init__`."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imports_of(name: str, *, typing: bool = False) -> Iterator[Import]:
    """The imports of a module, and the modules whose names it holds as text, as for `python -m`.

    Args:
        name: the module.
        typing: imports for type checkers alone as well.
    """
    tree = sources()[name]
    names_of_logs = {
        id(argument)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "getLogger"
        for argument in call.args
    }
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, deferred = pending.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING" and not typing:
            continue
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} (line {node.lineno}): a relative import. Write the whole name."
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and _is_module(node.value) and id(node) not in names_of_logs:
            yield _import(name, node.value, node.lineno, True)
        for target in targets:
            yield _import(name, target, getattr(node, "lineno", 0), deferred)
        inside = deferred or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        pending.extend((child, inside) for child in ast.iter_child_nodes(node))


def _is_module(text: object) -> bool:
    """True for the whole name of a module of ours."""
    return (
        isinstance(text, str) and text.startswith(f"{PACKAGE.name}.") and text.split(".", 1)[1] in sources()
    )


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules of which each leads to every other, by repeatedly leaving out what leads nowhere."""
    while True:
        ends = {name for name, targets in arrows.items() if not targets}
        starts = set(arrows) - {target for targets in arrows.values() for target in targets}
        if not ends | starts:
            return [sorted(arrows)] if arrows else []
        arrows = {
            name: targets - ends - starts for name, targets in arrows.items() if name not in ends | starts
        }


def _import(importer: str, target: str, line: int, deferred: bool) -> Import:
    first, _, rest = target.partition(".")
    if first != PACKAGE.name:
        return Import(importer, target, False, line, deferred)
    while rest and rest not in sources():
        rest = rest.rpartition(".")[0]
    return Import(importer, rest or "__init__", True, line, deferred)


@lru_cache(maxsize=1)
def all_imports() -> tuple[Import, ...]:
    return tuple(one for name in sources() for one in imports_of(name))


def folder_of(module: str) -> str:
    return module.partition(".")[0]


def place_of(pipeline: str) -> int:
    """Where a pipeline stands in `ORDER`."""
    return next(place for place, folders in enumerate(ORDER) if pipeline in folders)


def between_folders() -> list[Import]:
    """Imports of ours that leave their pipeline; the package's own lazy names are no pipeline."""
    return [
        one
        for one in all_imports()
        if one.ours
        and folder_of(one.importer) != folder_of(one.target)
        and "__init__" not in (one.importer, one.target)
    ]


def is_reading(module: str) -> bool:
    return folder_of(module) in READING or module in {f"cli.{name}" for name in READ_COMMANDS}


class TestDirections:
    def test_every_folder_has_its_place(self):
        there = {folder_of(name) for name in sources()} - {"__init__"}
        assert there == {pipeline for folders in ORDER for pipeline in folders}

    def test_no_folder_imports_against_the_flow_of_the_data(self):
        back = [
            one
            for one in between_folders()
            if place_of(folder_of(one.importer)) <= place_of(folder_of(one.target))
        ]
        assert not back, "\n".join(map(str, back))

    def test_the_reading_side_takes_plain_data_alone_from_the_writing_side(self):
        allowed = {*READ_FROM, *READING}
        further = [
            one
            for one in between_folders()
            if folder_of(one.importer) in READING
            and folder_of(one.target) not in allowed
            and (one.importer, one.target) not in READS_MORE
        ]
        assert not further, "\n".join(map(str, further))

    def test_the_inspector_is_imported_by_the_commands_that_show_it_alone(self):
        others = [
            one
            for one in between_folders()
            if folder_of(one.target) == "inspector" and one.importer not in MAY_IMPORT_INSPECTOR
        ]
        assert not others, "\n".join(map(str, others))

    def test_the_architecture_page_lists_the_arrows_of_the_write_path(self):
        page = PACKAGE.parent / "docs" / "architecture.md"
        for folder in WRITE_PATH:
            targets = sorted(
                {folder_of(one.target) for one in between_folders() if folder_of(one.importer) == folder}
            )
            row = f"| `{folder}` | {', '.join(f'`{target}`' for target in targets)} |"
            assert row in page.read_text(encoding="utf-8"), f"expected in {page.name}: {row}"

    def test_every_exception_is_still_needed(self):
        met = {(one.importer, one.target) for one in between_folders()}
        assert not set(READS_MORE) - met

    def test_no_two_modules_import_each_other_by_any_way(self):
        """Imports for type checkers count: a type that is needed back belongs into a module of its own."""
        arrows = {
            name: {
                one.target
                for one in imports_of(name, typing=True)
                if one.ours and one.target not in (name, "__init__")
            }
            for name in sources()
        }
        assert circles(arrows) == []


class TestTorch:
    def test_nothing_that_the_reading_side_imports_needs_torch(self):
        pending = [(name, name) for name in sources() if is_reading(name)]
        seen: set[str] = set()
        while pending:
            name, way = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            for one in imports_of(name):
                if one.deferred and not is_reading(name):
                    continue
                if one.ours:
                    pending.append((one.target, f"{way} > {one.target}"))
                else:
                    assert one.target.partition(".")[0] not in HEAVY, f"{one}, by way of {way}"
        assert {"store.store", "inspector.server", "trace.packing"} <= seen


class TestGradio:
    def test_the_page_alone_needs_it(self):
        others = [
            one
            for one in all_imports()
            if one.target.partition(".")[0] == "gradio"
            and folder_of(one.importer) != "inspector"
            and one.importer not in MAY_IMPORT_INSPECTOR
        ]
        assert not others, "\n".join(map(str, others))


class TestTrackio:
    def test_outside_the_sink_only_what_reads_is_imported(self):
        found: dict[str, set[str]] = {}
        for one in all_imports():
            if one.target.partition(".")[0] == "trackio" and folder_of(one.importer) != "sink":
                found.setdefault(one.importer, set()).add(one.target)
        assert found == TRACKIO_OUTSIDE_THE_SINK

    def test_outside_the_sink_no_run_of_trackio_is_written_to(self):
        written = []
        for name, tree in sources().items():
            if folder_of(name) in ("sink", OTHER_TRACKERS):
                continue
            for node in ast.walk(tree):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                holder = node.func.value
                called_on = getattr(holder, "id", "") or getattr(holder, "attr", "")
                if node.func.attr in WRITES and called_on in ("trackio", "run", "_run"):
                    written.append(f"{name} (line {node.lineno}) calls {called_on}.{node.func.attr}")
        assert not written, "\n".join(written)


class TestTheWalkItself:
    """The walk has to see what it is meant to forbid."""

    @pytest.fixture
    def planted(self, monkeypatch):
        def plant(name: str, code: str) -> list[Import]:
            trees = {**sources(), name: ast.parse(code)}
            monkeypatch.setitem(globals(), "sources", lambda: trees)
            return list(imports_of(name))

        return plant

    def test_imports_inside_functions_and_of_single_names_are_seen(self, planted):
        found = planted(
            "ledger.planted",
            "def late():\n    from rollout_traces.store import open_store\n    import torch.nn\n",
        )
        assert {(one.target, one.ours, one.deferred) for one in found} == {
            ("store", True, True),
            ("torch.nn", False, True),
        }

    def test_imports_for_type_checkers_are_not(self, planted):
        code = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
        assert [one.target for one in planted("store.planted", code)] == ["typing.TYPE_CHECKING"]

    def test_processes_that_are_started_by_module_name_are(self, planted):
        code = (
            'import subprocess\ndef go():\n    subprocess.run(["python", "-m", "rollout_traces.cli.show"])\n'
        )
        assert ("cli.show", True, True) in {
            (one.target, one.ours, one.deferred) for one in planted("ledger.planted", code)
        }

    def test_names_of_logs_are_not(self, planted):
        code = 'import logging\nlog = logging.getLogger("rollout_traces.cli.show")\n'
        assert [one.target for one in planted("ledger.planted", code)] == ["logging"]

    def test_a_circle_is(self):
        assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
        assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


class TestNames:
    def test_no_two_classes_have_one_name(self):
        places: dict[str, list[str]] = {}
        for module, tree in sources().items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(module)
        assert {name: found for name, found in places.items() if len(found) > 1} == {}
