"""Modules become one script."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from rollout_traces.inspector.assets import bundle, inlined, joined


class TestJoined:
    @pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
    def test_each_module_is_run_once_and_found_by_its_entry(self, tmp_path):
        modules = {
            "a/script.js": 'import { count } from "../lib/x.js";\nexport function mount() { return count(); }\n',
            "b/script.js": 'import { count } from "../lib/x.js";\nexport function mount() { return count(); }\n',
            "lib/x.js": "let n = 0;\nexport function count() { n += 1; return n; }\n",
        }
        (tmp_path / "all.mjs").write_text(joined(modules, {"a": "a/script.js", "b": "b/script.js"}))
        said = 'import("./all.mjs").then(({entries: e}) => console.log(Object.keys(e).join(), e.a.mount(), e.b.mount()))'
        done = subprocess.run(["node", "-e", said], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.split() == ["a,b", "1", "2"], done.stderr


class TestInlined:
    @pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
    def test_exports_reach_their_importers_under_every_form_of_import(self):
        modules = {
            "a/main.js": 'import { one, two as second } from "../lib/x.js";\nimport * as all from "../lib/x.js";\n'
            "console.log(one, second(), all.Three.name, typeof hidden);",
            "lib/x.js": "const hidden = 1;\nexport const one = hidden;\nexport function two() { return 2; }\n"
            "export class Three {}\n",
        }
        done = subprocess.run(["node", "-e", inlined(modules, "a/main.js")], capture_output=True, text=True)
        assert done.stdout.split() == ["1", "2", "Three", "undefined"], done.stderr

    def test_every_module_of_the_inspector_can_be_joined(self):
        modules = bundle().modules
        for entry in modules:
            if entry.endswith("/script.js"):
                assert inlined(modules, entry)
