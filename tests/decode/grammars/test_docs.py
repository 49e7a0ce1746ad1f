"""The examples in docs/tool-calls.md."""

import re
from pathlib import Path

import pytest

from rollout_traces.decode.grammars import CALL_GRAMMARS, parse_assistant

DOCUMENT = Path(__file__).parents[3] / "docs" / "tool-calls.md"
EXAMPLES = {
    name: example
    for name, _, example in re.findall(
        r"^### (\w+)\n(?:[^\n`#][^\n]*\n)*(`{3,4})text\n(.*?)\n\2$",
        DOCUMENT.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
}
VARIANTS = {"muse_recipients", "phi_functools", "granite_function", "lfm2_vl", "lfm2_raw"}
FAMILIES = {grammar.name: grammar for grammar in CALL_GRAMMARS}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_the_call_that_the_document_says(name):
    parsed = parse_assistant(EXAMPLES[name], (FAMILIES[name],))
    assert [(call.name, call.arguments) for call in parsed.calls] == [("get_weather", {"city": "Oslo"})]
    assert (parsed.content, parsed.warnings) == ("", ())


def test_every_family_has_an_example_or_is_named_as_a_variant():
    assert set(FAMILIES) == set(EXAMPLES) | VARIANTS
    assert all(f"`{name}`" in DOCUMENT.read_text(encoding="utf-8") for name in VARIANTS)
