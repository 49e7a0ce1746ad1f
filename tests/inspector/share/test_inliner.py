"""Modules become one script."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from rollout_traces.inspector.assets import bundle
from rollout_traces.inspector.share.inliner import InlineError, inlined


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
        modules = {n: a.body.decode() for n, a in bundle().files.items() if n.endswith(".js")}
        for entry in modules:
            if entry.endswith("/script.js"):
                assert inlined(modules, entry)

    @pytest.mark.parametrize(
        ("modules", "said"),
        [
            ({"a.js": 'import { b } from "./b.js";'}, "b.js, which is not there"),
            (
                {"a.js": 'import { b } from "./b.js";', "b.js": 'import { a } from "./a.js";'},
                "circle: a.js > b.js > a.js",
            ),
            ({"a.js": "export default 3;"}, "no form of import or export"),
            ({"a.js": 'import b from "./b.js";'}, "no form of import or export"),
        ],
    )
    def test_what_it_does_not_read_is_refused(self, modules, said):
        with pytest.raises(InlineError, match=said):
            inlined(modules, "a.js")
