"""Episodes of verifiers and prime-rl: paths through a tree of messages, and what the records say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_traces.sources.formats.verifiers_trace import (
    NOT_TRAINED,
    VerifiersTrace,
    _parent,
    _timings,
    _weights,
    paths_of,
    spread,
)
from rollout_traces.sources.problems import Problems
from tests.sources.reading import rows_of, runs_of


def node(parent: int | None = None, *, said: str | None = None, **more) -> dict:
    """A user's message, or with `said` what the policy wrote."""
    message = {"role": "user", "content": "q"} if said is None else {"role": "assistant", "content": said}
    return {"parent": parent, "message": message, **({} if said is None else {"sampled": True}), **more}


TALK = [node(), node(0, said="a")]


def episode(*traces: dict, **more) -> dict:
    return {"id": "e1", "env": {"id": "x"}, "traces": list(traces), **more}


@pytest.fixture
def read(tmp_path):
    """Reads episodes as a file of their own."""

    def of(*episodes: dict, name: str = "out/traces.jsonl", problems: Problems | None = None):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in episodes))
        return rows_of(path, problems)

    return of


class TestPaths:
    @pytest.mark.parametrize(
        ("parents", "paths"),
        [
            ([], []),
            ([None], [[0]]),
            ([None, 0, 1], [[0, 1, 2]]),
            ([None, 0, 0, 1], [[0, 2], [0, 1, 3]]),
            ([None, None], [[0], [1]]),
            ([1, None], [[1, 0]]),
            ([None, 2, 1], [[0]]),  # no leaf leads into the circle
        ],
    )
    def test_go_from_a_root_to_each_leaf(self, parents, paths):
        assert paths_of([{"parent": parent} for parent in parents]) == paths

    @pytest.mark.parametrize("parents", [[0], [1, 0], [1, 2, 1, 0]])
    def test_that_go_in_a_circle_are_refused(self, parents):
        with pytest.raises(ValueError, match="circle"):
            paths_of([{"parent": parent} for parent in parents])

    @pytest.mark.parametrize("parent", [-1, 2, "0", 0.0])
    def test_to_a_parent_that_is_not_there_are_refused(self, parent):
        with pytest.raises(ValueError, match="a node's parent is"):
            paths_of([{"parent": None}, {"parent": parent}])

    def test_a_branch_left_the_earlier_one_that_it_shares_most_with(self):
        written = [("a", [0, 1, 2]), ("b", [0, 3, 4]), ("c", [0, 3, 4, 5])]
        assert _parent(written, [0, 3, 6]) == "b" and _parent(written, [0, 1, 2, 7]) == "a"
        assert _parent(written, [0, 3, 4, 5, 8]) == "c"
        assert _parent(written, [9]) == "a" and _parent([], [9]) is None


class TestTokens:
    def test_lie_end_to_end_with_a_value_for_each_sampled_one(self, read):
        first = node(token_ids=[1, 2])
        second = node(0, said="a", token_ids=[3, 4, 5], mask=[0, 1, 1], logprobs=[-1, -2], entropies=[1, 2])
        [row] = read(episode({"nodes": [first, second]}))
        assert row.input_ids == [1, 2, 3, 4, 5]
        assert row.response_mask == row.loss_mask == [False, False, False, True, True]
        assert row.tracks == {
            "logprobs": [None, None, None, -1, -2],
            "entropies": [None, None, None, 1, 2],
        }

    def test_that_an_earlier_branch_has_are_not_in_the_loss_again(self, read):
        nodes = [
            node(token_ids=[1]),
            node(0, said="a", token_ids=[2], mask=[1]),
            node(1, said="b", token_ids=[3], mask=[1]),
            node(1, said="c", token_ids=[4], mask=[1]),
        ]
        first, second = read(episode({"id": "t", "nodes": nodes}))
        assert (first.input_ids, first.loss_mask) == ([1, 2, 3], [False, True, True])
        assert (second.input_ids, second.loss_mask) == ([1, 2, 4], [False, False, True])
        assert second.response_mask == [False, True, True]
        assert (first.sample_id, second.sample_id, second.parent) == ("t", "t/1", "t")
        assert (first.identity, second.identity) == ("e1/t", "e1/t/1")

    def test_that_an_earlier_branch_has_weigh_nothing_again(self, read):
        nodes = [
            node(token_ids=[1, 2]),
            node(0, said="a", token_ids=[3, 4], mask=[1, 0], loss_weights={"ce": [0.5, 0.25]}),
            node(1, said="b", token_ids=[5], mask=[1]),
            node(1, said="c", token_ids=[6], mask=[1]),
        ]
        first, second = read(episode({"nodes": nodes}))
        assert first.tracks["loss_weights"] == [0.0, 0.0, 1.5, 0.25, 1.0]
        assert first.loss_mask == [False, False, True, True, True]
        assert second.tracks["loss_weights"] == [0.0, 0.0, 0.0, 0.0, 1.0]
        assert second.loss_mask == [False] * 4 + [True]

    def test_a_mask_of_another_length_refuses_the_trace(self, read):
        problems = Problems()
        assert read(episode({"nodes": [node(token_ids=[1, 2], mask=[1])]}), problems=problems) == []
        assert "1 mask values beside 2 tokens" in str(problems.kept[0])

    def test_weights_are_the_sum_of_their_parts(self):
        assert _weights({}, [1, 0]) == [1.0, 0.0]
        assert _weights({"loss_weights": {"ce": [0.5, 0.25]}}, [1, 0]) == [1.5, 0.25]
        assert _weights({"loss_weights": {"rl": [0.5, 0.0], "ref_kl": [1, 0]}}, [1, 0]) == [1.5, 0.0]

    def test_values_that_are_too_few_leave_the_others_unknown(self):
        branch = [{"mask": [1, 0, 1], "x": [5]}, {"token_ids": [1, 2]}, {"mask": [1], "x": [6, 7]}]
        assert spread(branch, "x") == [5, None, None, None, None, 6]

    def test_text_alone_has_none(self, read):
        [row] = read(episode({"nodes": TALK}))
        assert row.input_ids is None and row.tracks == {}
        assert [message["content"] for message in row.messages] == ["q", "a"] and row.n_prompt_messages == 1


class TestWhatARecordSays:
    def test_the_trainer_says_step_group_and_policy(self, read):
        work = {"step": 7, "type": "train", "policy": {"end": 3}}
        record = episode(
            {"nodes": TALK}, run={"work": work}, group={"id": "g"}, task={"key": "k", "type": "qa"}
        )
        [row] = read(record)
        assert (row.step, row.split, row.group, row.prompt_key, row.episode) == (7, "rollout", "g", "k", "e1")
        assert row.extras == {"env": "x", "task": "qa", "policy_end": 3} and row.source == "x"
        assert (row.reward, row.components, row.reward_status, row.timings) == (None, {}, None, None)
        [plain] = read(episode({"nodes": TALK}, env={"name": "sums", "id": "x"}))
        assert (plain.step, plain.group, plain.source) == (0, None, "sums")
        assert plain.sample_id == "e1-1" and plain.identity is None

    @pytest.mark.parametrize("run", [{"type": "eval"}, {"work": {"type": "eval"}}])
    def test_an_evaluation_says_so(self, read, run):
        assert read(episode({"nodes": TALK}, run=run))[0].split == "eval-rollout"

    def test_the_reward_is_the_weighted_sum_of_scores(self, read):
        rewards = {"a": {"score": 1, "weight": 0.5}, "b": {"score": 2.0}, "c": {"score": None}, "d": 3}
        [row] = read(episode({"nodes": TALK, "rewards": rewards, "metrics": {"m": 1}}))
        assert row.reward == 2.5 and row.components == {"a": 1.0, "b": 2.0, "c": None}
        assert row.metrics == {"m": 1}

    def test_a_trace_that_failed_says_what_failed(self, read):
        error = {"type": "E", "message": "no " * 400}
        [row] = read(episode({"nodes": TALK, "errors": [{"type": "first"}, error]}))
        assert row.reward_status == "error" and row.extras["error"] == ("no " * 400)[:500]
        [scored] = read(episode({"nodes": TALK, "rewards": {"a": {"score": 0}}, "errors": [{"type": "T"}]}))
        assert scored.reward_status is None and scored.extras["error"] == "T"
        assert read(episode({"nodes": TALK, "is_timeout": True}))[0].reward_status == "timeout"

    def test_the_trace_goes_before_the_episode(self, read):
        task = {"hash": "h", "data": {"answer": "4"}}
        [row] = read(episode({"nodes": TALK, "task": task, "agent": {"name": "solver"}}, task={"key": "k"}))
        assert (row.prompt_key, row.ground_truth, row.extras["agent"]) == ("h", "4", "solver")

    def test_tools_are_those_of_the_first_message_else_of_the_trace(self, read):
        nodes = [node(tools=[{"name": "f"}]), node(0, said="a", tools=[{"name": "g"}])]
        assert read(episode({"nodes": nodes, "tools": [{"name": "h"}]}))[0].tools == [{"name": "f"}]
        assert read(episode({"nodes": TALK, "tools": [{"name": "h"}]}))[0].tools == [{"name": "h"}]
        assert read(episode({"nodes": TALK}))[0].tools is None

    def test_a_branch_stops_for_what_its_own_last_call_says(self, read):
        nodes = [*TALK, node(0, said="b")]
        calls = [{"node": 1, "finish_reason": "length"}, {"node": 2, "finish_reason": "stop"}, "x"]
        first, second = read(episode({"nodes": nodes, "calls": calls, "stop_condition": "done"}))
        assert (first.stop_reason, second.stop_reason) == ("length", "done")
        assert [row.stop_reason for row in read(episode({"nodes": nodes, "calls": calls}))] == [
            "length",
            "stop",
        ]
        assert read(episode({"nodes": TALK}))[0].stop_reason is None

    def test_timings_are_spans_or_durations(self):
        timing = {"a": {"start": 2.0, "end": 5.0}, "b": {"duration": 1}, "c": {"end": 0, "duration": 4}}
        timing |= {"d": {"start": 9.0, "end": 5.0}, "e": 3.0, "f": {"end": 2.0}}
        assert _timings(timing) == {"a": 3.0, "b": 1.0, "c": 4.0, "d": 0.0, "f": 2.0}


class TestEpisodes:
    def test_without_a_trace_are_told_of_with_their_error(self, read):
        problems = Problems()
        bad = episode(errors=[{"type": "A", "message": "x"}, {"type": "B", "message": "no room"}, 3])
        rows = read(episode({"nodes": TALK}), bad, episode(), episode({"nodes": []}), problems=problems)
        assert len(rows) == 1 and problems.counts["episodes_without_trace"] == 2
        assert "the episode has no trace (B: no room)" in str(problems.kept[0])
        assert "the episode has no trace;" in str(problems.kept[1])

    def test_of_prime_rl_that_were_in_no_batch_are_marked_and_others_read_once(self, tmp_path, read):
        trained, other = episode({"nodes": TALK}), episode({"nodes": TALK}) | {"id": "e2"}
        run = "run/rollouts/step_3/train"
        for name, episodes in (("all", [trained, other]), ("effective", [trained])):
            path = tmp_path / run / name / "traces.jsonl"
            path.parent.mkdir(parents=True)
            path.write_text("".join(json.dumps(each) + "\n" for each in episodes))
        found = {row.episode: row.discard_reason for row in rows_of(tmp_path / "run")}
        assert found == {"e1": None, "e2": NOT_TRAINED}


class TestClaims:
    def claim(self, tmp_path: Path, name: str, record: dict):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record) + "\n")
        found = [file for run in runs_of(path) for file in run.files]
        return found[0].claim if found and isinstance(found[0].format, VerifiersTrace) else None

    def test_a_folder_of_a_step_tells_the_step_and_the_run_above_it(self, tmp_path):
        record = episode({"nodes": TALK})
        claim = self.claim(tmp_path, "run/rollouts/step_12/train/all/traces.jsonl", record)
        assert (claim.root.name, claim.step, claim.split, claim.order) == ("run", 12, "rollout", "all")
        claim = self.claim(tmp_path, "run/step_3/eval/all/traces.jsonl", record)
        assert (claim.root.name, claim.step, claim.split) == ("run", 3, "eval-rollout")
        claim = self.claim(tmp_path, "run/step_4/a/b/c/traces.jsonl", record)
        assert (claim.root.name, claim.step, claim.split) == ("run", 4, "rollout")
        claim = self.claim(tmp_path, "run/step_4/a/b/c/d/traces.jsonl", record)
        assert (claim.root.name, claim.step) == ("d", None)
        claim = self.claim(tmp_path, "eval-out/traces.jsonl", record)
        assert (claim.root.name, claim.step, claim.split) == ("eval-out", None, "eval-rollout")

    def test_tokens_are_lacking_where_none_were_recorded(self, tmp_path):
        versions = "policy versions of single tokens"
        with_ids = episode({"nodes": [node(token_ids=[1])]})
        assert self.claim(tmp_path, "a/traces.jsonl", with_ids).lacks == [versions]
        without = self.claim(tmp_path, "b/traces.jsonl", episode({"nodes": TALK})).lacks
        assert without == ["token ids", "loss mask", "logprobs", versions]

    @pytest.mark.parametrize("missing", ["id", "traces", "env"])
    def test_half_of_an_episode_is_none(self, tmp_path, missing):
        record = {key: value for key, value in episode({"nodes": TALK}).items() if key != missing}
        assert self.claim(tmp_path, "a/traces.jsonl", record) is None
        task = self.claim(tmp_path, "b/traces.jsonl", record | {"task": {}})
        assert (task is not None) == (missing == "env")
