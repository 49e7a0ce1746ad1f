"""The texts of kept rollouts, in full, from their traces."""

from __future__ import annotations

import orjson
import pytest

import rollout_traces as rt
from rollout_traces.store.search import _read
from tests.stories.logged import log_story
from tests.stories.world import Kind, write_run
from tests.trackio_home import use_trackio_home


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> rt.Store:
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder)
        patch.setattr("tests.stories.world.KINDS", {"small": Kind(n_sources=2, groups=(3, 3), group_size=4)})
        log_story(write_run(2, "small", n_steps=4, run="run"), "texts", cap=6)
        yield rt.open_store(project="texts")


def kept(store: rt.Store) -> list[tuple[str, str]]:
    rows = store.table().sql("select uid, cast(id as varchar) as id from rollouts where traced").to_pylist()
    return [(row["uid"], row["id"]) for row in rows]


class TestTexts:
    def test_they_are_what_the_messages_say(self, store):
        named = kept(store)
        found = {row["uid"]: row for row in store.table().texts([uid for uid, _ in named]).to_pylist()}
        assert set(found) == {uid for uid, _ in named}
        for uid, trace_id in named:
            messages = store.messages(trace_id)
            said = [m["content"] for m in messages if m["role"] == "assistant"]
            asked = [m["content"] for m in messages if m["role"] == "user"]
            assert found[uid]["written"] == "\n".join(said)
            assert found[uid]["prompt"] == asked[-1]

    def test_of_rollouts_that_are_not_there_nothing_is_said(self, store):
        assert store.table().texts(["nobody"]).num_rows == 0 and store.table().texts([]).num_rows == 0


class TestOneTrace:
    def test_tools_answer_what_the_policy_called_and_not_what_an_example_did(self):
        call = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "search", "arguments": "{}"}}],
        }
        example = [{"role": "user", "content": "one?"}, call, {"role": "tool", "content": "an example"}, call]
        asked = [{"role": "user", "content": "two?"}, call, {"role": "tool", "content": "No results."}]
        again = [call, {"role": "tool", "content": [{"type": "text", "text": "A page."}]}, call]
        found = _read(orjson.dumps([*example, *asked, *again]), orjson.dumps({"n_turns": 3}), None)
        assert found is not None and found.tool_results == "No results.\nA page."
        without = _read(orjson.dumps(example[:2]), None, None)
        assert without is not None and without.tool_results is None

    def test_thinking_counts_and_examples_of_the_prompt_do_not(self):
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "4", "reasoning_content": "Two and two."},
        ]
        found = _read(orjson.dumps(messages), orjson.dumps({"n_turns": 1, "ground_truth": "4"}), None)
        assert (found.written, found.prompt, found.system) == ("Two and two.\n4", "2 + 2?", "Be brief.")
        assert (found.tools, found.ground_truth) == (None, "4")

    @pytest.mark.parametrize("text", [b"{", b"null", b"[1, 2]", b'[{"role": "assistant", "content": null}]'])
    def test_damaged_and_odd_ones_raise_nothing(self, text):
        try:
            found = _read(text, b"{}", b"[]")
        except TypeError:
            pytest.fail("odd JSON")
        assert found is None or found.prompt is None
