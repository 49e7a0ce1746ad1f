"""A step's rollouts by group and as a list, one rollout, and its tokens."""

from __future__ import annotations

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.rollouts import MOST_TOKENS, metrics, rollout, samples, tokens


class TestAStep:
    def test_is_its_groups_with_the_rewards_of_all_their_rollouts(self, ask):
        found = ask(samples, step=1)
        mixed, tied = found["groups"]
        assert (mixed["group"], mixed["n"], mixed["mean"], mixed["tied"], tied["tied"]) == (
            0,
            4,
            0.5,
            False,
            True,
        )
        assert [(dot["reward"], dot["traced"]) for dot in mixed["rewards"]] == [
            (1.0, True),
            (0.5, False),
            (0.0, True),
            (None, False),
        ]
        assert (len(mixed["samples"]), len(tied["samples"]), found["n_matched"]) == (2, 1, 3)
        assert (found["step"], found["scope"], found["note"], found["next"]) == (1, "step", None, None)
        assert mixed["prompt"] == "What is 6 times 7?" and tied["zero_advantage"]

    def test_a_filter_or_a_search_leaves_the_groups_that_match(self, ask):
        assert [group["group"] for group in ask(samples, step=1, where="reward < 0.3")["groups"]] == [0, 1]
        (group,) = ask(samples, step=1, text="sorry")["groups"]
        assert group["group"] == 0 and len(group["samples"]) == 1 and group["n"] == 4
        assert ask(samples, step=1, where="reward > 5")["groups"] == []

    def test_sorted_it_is_a_list(self, ask):
        found = ask(samples, step=1, sort="reward")
        assert found["groups"] is None and found["n_matched"] == 3
        assert [card["reward"] for card in found["samples"]] == [0.0, 0.25, 1.0]

    def test_of_every_step_there_is_a_list_of_all(self, ask):
        found = ask(samples, step=1, scope="all")
        assert (found["scope"], found["n_matched"], len(found["samples"])) == ("all", 9, 9)
        assert ask(samples, step=1, scope="all", where="reward = 1")["n_matched"] == 3


class TestARollout:
    def test_is_found_by_its_place(self, ask):
        by_place = ask(rollout, step=1, group=0, sample=1)
        assert by_place == ask(rollout, id=by_place["id"])
        assert by_place["id"] != ask(rollout, step=1, group=0, sample=0)["id"]

    def test_that_was_not_kept_is_said(self, ask):
        with pytest.raises(StoreError, match="step 1, group 0, sample 2 of rollout was not kept as a trace"):
            ask(rollout, step=1, group=0, sample=2)
        with pytest.raises(StoreError, match="step: none named"):
            ask(rollout)


class TestTokens:
    def test_come_some_at_a_time_and_are_the_rollouts_own(self, ask):
        key = ask(rollout, step=1, group=0, sample=0)["id"]
        whole = ask(tokens, id=key)
        assert whole["next"] is None and len(whole["tokens"]) == whole["n_tokens"]
        assert "".join(token["text"] for token in whole["tokens"]).endswith("I cannot be wrong.<|end|>\n")
        first = ask(tokens, id=key, limit=3)
        rest = ask(tokens, id=key, after=first["next"])
        assert first["next"] == 3 and [*first["tokens"], *rest["tokens"]] == whole["tokens"]
        assert [token["at"] for token in whole["tokens"]] == list(range(whole["n_tokens"]))
        sampled = [token for token in whole["tokens"] if token["sampled"]]
        assert 0 < len(sampled) < whole["n_tokens"] and sampled[0]["tracks"]["logprobs"] == -0.5
        assert whole["row_advantage"] == pytest.approx(0.5)

    @pytest.mark.parametrize("asked", [{"after": -1}, {"limit": 0}, {"limit": MOST_TOKENS + 1}])
    def test_are_refused_out_of_bounds(self, ask, asked):
        key = ask(rollout, step=1, group=0, sample=0)["id"]
        with pytest.raises(StoreError, match=r"after: 0 or more; limit: 1 to"):
            ask(tokens, id=key, **asked)


def test_logged_numbers_come_with_how_far_the_run_was(ask):
    found = ask(metrics, names=["train/loss"])
    assert found["shown"] == ["train/loss"] and found["series"]["train/loss"]["steps"] == [0, 1, 2]
    assert found["progress"] == {
        "steps": [0, 1, 2],
        "rollouts": [8.0, 16.0, 24.0],
        "tokens": [320.0, 640.0, 960.0],
    }


class TestAResumedRun:
    def test_of_all_steps_lists_and_counts_the_newest_attempt_alone(self, ask_resumed):
        found = ask_resumed(samples, step=1, scope="all")
        assert (found["n_traced"], found["n_rows"], found["n_matched"]) == (4, 8, 4)
        assert ask_resumed(samples, step=1, scope="all", where="superseded")["n_matched"] == 4
        assert [each["mean"] for each in ask_resumed(samples, step=1)["groups"]] == [0.75]

    def test_opens_the_sample_of_the_newest_attempt_else_of_the_one_before(self, ask_resumed):
        opened = [ask_resumed(rollout, step=step, group=0, sample=0) for step in (1, 2)]
        assert [each["superseded"] for each in opened] == [False, True]
