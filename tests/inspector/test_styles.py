"""Styles of one component reach no other: a class belongs to the sheet that styles it."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import rollout_traces.inspector

INSPECTOR = Path(rollout_traces.inspector.__file__).parent
RULE = re.compile(r"([^{}@;]+)\{")
CLASS = re.compile(r"\.(rt-[\w-]+)")


def first_classes(sheet: str) -> set[str]:
    """The class that each selector of a sheet begins with: what it may style wherever that stands."""
    selectors = RULE.findall(re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL))
    single = (one for group in selectors for one in re.split(r",(?![^(]*\))", group))
    return {found[1] for one in single if (found := CLASS.search(one))}


def owners() -> dict[str, set[str]]:
    """Class -> the components whose sheets have selectors that begin with it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (INSPECTOR / "components").glob("*/*.css"):
        for name in first_classes(path.read_text("utf-8")):
            found[name].add(path.parent.name)
    return found


def test_a_class_is_styled_by_one_component():
    assert {name: sorted(by) for name, by in owners().items() if len(by) > 1 and name != "rt-view"} == {}


def test_a_class_of_the_common_sheet_is_styled_by_no_component():
    common = {
        name for path in (INSPECTOR / "lib").glob("*.css") for name in first_classes(path.read_text("utf-8"))
    }
    assert {name: sorted(by) for name, by in owners().items() if name in common} == {
        "rt-view": sorted(owners()["rt-view"]),
        "rt-status": ["shell"],
    }


def test_the_first_class_of_every_selector_is_found():
    assert first_classes(
        "/* .rt-no { } */ .rt-a, :root .rt-b:is(h1, h2) > .rt-c { } @media (x) { .rt-d { } }"
    ) == {
        "rt-a",
        "rt-b",
        "rt-d",
    }
