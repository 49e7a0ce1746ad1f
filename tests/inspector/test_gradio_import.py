"""The inspector's start does not pay for stub files of Gradio's components."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNTED = """
import ast, inspect, sys
sys.path.insert(0, {root!r})
parsed = []
really = ast.parse
ast.parse = lambda source, *rest, **named: (parsed.append(source), really(source, *rest, **named))[1]
{imported}
components = [source for source in parsed if isinstance(source, str) and "class HTML(" in source]
with gradio.Blocks(analytics_enabled=False):
    gradio.HTML("text").change(print)
print(len(components), inspect.getfile.__module__)
"""
OURS = "from rollout_traces.inspector.gradio_import import import_gradio; gradio = import_gradio()"


@pytest.mark.parametrize("imported, parses", [("import gradio", True), (OURS, False)])
def test_the_source_of_components_is_parsed_by_gradio_alone_and_not_by_the_inspector(
    imported, parses, pytestconfig
):
    code = COUNTED.format(root=str(pytestconfig.rootpath), imported=imported)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    count, home = done.stdout.split()
    assert (int(count) > 0) is parses
    assert home == "inspect"


def test_a_missing_gradio_is_an_import_error():
    code = "import sys; sys.modules['gradio'] = None\n" + OURS
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().splitlines()[-1].startswith("ModuleNotFoundError: import of gradio")
