"""The README and the docs name only what exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.core
import typer.main

from rollout_traces.cli import build_app
from tests.generator import tiny_tokenizer

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.fixture(scope="module")
def commands() -> dict[str, typer.core.TyperCommand]:
    group = typer.main.get_command(build_app())
    assert isinstance(group, typer.core.TyperGroup)
    return dict(group.commands)


def code_of(page: Path) -> str:
    text = page.read_text()
    return "\n".join(
        [*re.findall(r"```(?:bash|sh|console)\n(.*?)```", text, re.S), *re.findall(r"`([^`\n]+)`", text)]
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
class TestPages:
    def test_every_command_and_option_named_exists(self, page, commands):
        for line in code_of(page).splitlines():
            found = re.search(r"(?:^|\s)rollout-traces ([a-z]+)(.*)", line)
            if not found:
                continue
            name, rest = found.groups()
            if name == "run":
                rest = re.split(r"\s[\w./-]+\.py\b", rest)[0]
            assert name in commands, f"{page.name} names `rollout-traces {name}`, which does not exist"
            options = {opt for param in commands[name].params for opt in (*param.opts, *param.secondary_opts)}
            for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", rest.split("#")[0]):
                assert option in options | {"--help"}, f"{page.name}: {name} has no option {option}"

    def test_every_make_target_named_exists(self, page):
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
        for target in re.findall(r"(?:^|\s|`)make ([a-z-]+)", code_of(page)):
            assert target in targets, f"{page.name} names `make {target}`, which does not exist"

    def test_every_relative_link_leads_somewhere(self, page):
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not link.startswith(("http://", "https://", "mailto:")):
                assert (page.parent / link).exists(), f"{page.name} links to {link}, which does not exist"


class TestSnippets:
    def test_the_one_on_tool_calls_runs(self):
        tokenizer = tiny_tokenizer("qwen3")
        tools = [
            {
                "type": "function",
                "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}},
            }
        ]
        body = 'sum</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
        page = (ROOT / "docs" / "tool-calls.md").read_text()
        snippet = re.search(r"```python\n(.*?)```", page, re.S)
        names = {"tokenizer": tokenizer, "tools": tools, "body": body}
        exec(snippet[1], names)
        parsed = names["parsed"]
        assert (parsed.thinking, [call.name for call in parsed.calls]) == ("sum", ["add"])


class TestHelp:
    def test_every_command_has_help_with_an_example(self, commands):
        assert commands
        for name, command in commands.items():
            assert command.help, f"{name} has no help"
            assert f"rollout-traces {name}" in command.help, f"the help of {name} shows no example"
            for param in command.params:
                if isinstance(param, typer.core.TyperOption):
                    assert param.help, f"{name} {param.opts[0]} has no help"


class TestPublicNames:
    def test_every_public_name_exists_and_is_documented(self):
        import rollout_traces as rt

        for name in rt.__all__:
            assert getattr(rt, name).__doc__, f"rollout_traces.{name} has no docstring"

    def test_type_checkers_know_the_same_names(self):
        import rollout_traces as rt

        tree = ast.parse((ROOT / "rollout_traces" / "__init__.pyi").read_text())
        known = {
            alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        known |= {ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)}
        assert known - {None} == set(rt.__all__)

    def test_importing_the_package_imports_neither_torch_nor_gradio_nor_trackio(self):
        code = "import sys, rollout_traces; print([m for m in ('torch', 'gradio', 'trackio') if m in sys.modules])"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert out.stdout.strip() == "[]"


class TestArchitecture:
    def test_the_page_names_every_folder_and_module_at_the_top_and_no_other(self):
        page = (ROOT / "docs" / "architecture.md").read_text()
        table = page.split("| --- | --- |")[1].split("\n## ")[0]
        named = {
            name
            for row in table.splitlines()
            if row.startswith("| `")
            for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])
        }
        package = ROOT / "rollout_traces"
        there = {path.stem for path in package.glob("*.py")} | {
            path.name for path in package.iterdir() if (path / "__init__.py").exists()
        }
        assert named == there - {"__init__"}
