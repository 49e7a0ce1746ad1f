"""The example trains for real, and its pieces say what they did."""

from __future__ import annotations

import itertools
import random

import pytest
import torch


def call(expression: str) -> str:
    """A well-formed assistant turn that uses the calculator."""
    arguments = f'{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}'
    return f"<think>\nSo.\n</think>\n<tool_call>\n{arguments}\n</tool_call>"


class TestCalculator:
    @pytest.mark.parametrize(
        ("expression", "result"),
        [("12 + 3 * 7", "33"), ("(2 + 3) * 4", "20"), ("7 / 2", "3.5"), ("56 / 7", "8"), ("-3 - 4", "-7")],
    )
    def test_it_computes(self, expression, result):
        from tiny_grpo.task import calculate

        assert calculate(expression) == result

    @pytest.mark.parametrize(
        "expression",
        [
            "__import__('os').getcwd()",
            "9 ** 9 ** 9",
            "a + 1",
            "1 +",
            "1 / 0",
            "'a' * 9",
            "True + 1",
            "(" * 99,
            "",
        ],
    )
    def test_everything_else_is_an_error_it_reports(self, expression):
        from tiny_grpo.task import calculate

        assert calculate(expression).startswith("error: ")

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ('<tool_call>{"name": "calculator"', "not closed"),
            ('<tool_call>{"name": "calculator"</tool_call>', "not valid JSON"),
            ('<tool_call>{"name": "shell", "arguments": {}}</tool_call>', "no such tool"),
            ("<tool_call>[1]</tool_call>", "no such tool"),
            ('<tool_call>{"name": "calculator", "arguments": {"expression": 3}}</tool_call>', "string"),
        ],
    )
    def test_a_bad_call_is_answered_with_what_is_wrong(self, text, error):
        from tiny_grpo.task import run_tool

        assert error in run_tool(text)


class TestTemplate:
    def test_a_conversation_renders_with_its_markers(self, tokenizer):
        messages = [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "U"},
            {
                "role": "assistant",
                "content": "<think>\nT\n</think>",
                "tool_calls": [{"function": {"name": "calculator", "arguments": {"expression": "1 + 1"}}}],
            },
            {"role": "tool", "content": "2"},
        ]
        assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nT\n</think>\n<tool_call>\n"
            '{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call><|im_end|>\n'
            "<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_markers_are_single_tokens_and_text_survives(self, tokenizer):
        from tiny_grpo.model import MARKUP, SPECIAL

        for marker in [*SPECIAL, *MARKUP]:
            assert len(tokenizer.encode(marker, add_special_tokens=False)) == 1
        text = 'Zoë has 12 äpples.\n{"a": [1, 2]} \\boxed{-3.5} 你好'
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text

    def test_the_mask_of_a_demonstration_covers_what_the_assistant_wrote(self, tokenizer, problem):
        from tiny_grpo.warm_up import demonstrate, encode

        messages = demonstrate(problem, random.Random(1))
        row = encode(tokenizer, messages)
        pairs = zip(row["input_ids"], row["assistant_masks"], strict=True)
        written = tokenizer.decode([token for token, mask in pairs if mask])
        assert written == "".join(m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant")

    def test_the_model_has_half_a_million_to_one_and_a_half_million_parameters(self, tokenizer):
        from tiny_grpo.model import make_model

        assert 500_000 <= make_model(tokenizer).num_parameters() <= 1_500_000


class TestReward:
    def test_two_right_answers_with_the_tool_earn_everything(self, problem):
        from tiny_grpo.task import Episode, total_reward

        episode = Episode(problem)
        first, second = problem.expressions
        assert episode.reply(call(first)) == ({"role": "tool", "content": problem.answers[0]}, None)
        follow_up, stop = episode.reply(f"\\boxed{{{problem.answers[0]}}}")
        assert follow_up == {"role": "user", "content": problem.questions[1]} and stop is None
        episode.reply(call(second))
        assert episode.reply(f"\\boxed{{{problem.answers[1]}}}") == (None, "stop")
        assert episode.success
        assert episode.score(n_sampled=100) == {"correct": 1.0, "format": 1.0, "brevity": 1.0}
        assert total_reward(episode.score(n_sampled=100)) == pytest.approx(1.0)
        assert total_reward(episode.score(n_sampled=150)) == pytest.approx(0.975)

    def test_half_right_without_the_tool(self, problem):
        from tiny_grpo.task import Episode, total_reward

        episode = Episode(problem)
        episode.reply(f"\\boxed{{{problem.answers[0]}}}")
        episode.reply("I do not know.")
        assert episode.boxed == [problem.answers[0], None] and not episode.success
        assert episode.score(n_sampled=20) == {"correct": 0.5, "format": 0.0, "brevity": 1.0}
        assert total_reward(episode.score(n_sampled=20)) == pytest.approx(0.45)

    def test_calling_the_tool_for_ever_ends_on_its_result_and_earns_nothing(self, problem):
        from tiny_grpo.task import MAX_TOOL_CALLS, Episode, total_reward

        episode = Episode(problem)
        replies = [episode.reply(call("1 + 1")) for _ in range(2 * MAX_TOOL_CALLS)]
        assert [stop for _, stop in replies] == [None] * (2 * MAX_TOOL_CALLS - 1) + ["max_turns"]
        assert replies[-1][0] == {"role": "tool", "content": "2"}
        assert total_reward(episode.score(n_sampled=10)) == 0.0


class TestRollouts:
    @pytest.fixture(scope="class")
    def groups(self, tokenizer, model):
        from tiny_grpo.sampler import Sampler
        from tiny_grpo.task import make_problem

        rng, sampler = random.Random(5), Sampler(tokenizer, group_size=4, seed=5, max_sampled=60)
        for _ in range(6):
            sampler.start(make_problem(rng))
        taken = sampler.collect(model, version=0, n_groups=1)
        taken += sampler.collect(model, version=1, n_groups=5)
        assert not sampler.groups
        return taken

    @pytest.fixture(scope="class")
    def batch(self, groups, tokenizer):
        from tiny_grpo.learner import make_batch

        return make_batch(groups, tokenizer.pad_token_id, train_version=1, device="cpu")

    def test_sampled_tokens_and_only_those_carry_a_version_a_turn_and_a_logprob(self, batch):
        sampled = batch["loss_mask"]
        assert sampled.any(1).all() and (sampled & ~batch["attention_mask"]).sum() == 0
        assert torch.equal(batch["versions"] >= 0, sampled)
        assert torch.equal(batch["turn_ids"] >= 0, sampled)
        assert (batch["logprobs"][~sampled] == 0).all() and (batch["logprobs"][sampled] < 0).all()

    def test_the_cache_gives_the_logprobs_that_a_plain_pass_gives(self, groups, batch, model, tokenizer):
        from tiny_grpo.learner import recomputed_logprobs

        torch.testing.assert_close(recomputed_logprobs(model, batch), batch["logprobs"], atol=2e-4, rtol=0)

    def test_a_rollout_reads_as_the_template_would_write_its_conversation(self, groups, tokenizer):
        from tiny_grpo.task import TOOLS, Episode

        finished = [rollout for group in groups for rollout in group if rollout.stop_reason == "stop"]
        assert finished
        for rollout in finished:
            spans, turn = {}, -1
            for token, turn in zip(rollout.ids, rollout.turn_ids, strict=True):
                spans.setdefault(turn, []).append(token)
            texts = [tokenizer.decode(spans[turn][:-1]) for turn in sorted(spans) if turn >= 0]
            episode = Episode(rollout.episode.problem)
            messages = episode.opening()
            for text in texts:
                reply, _ = episode.reply(text)
                messages += [{"role": "assistant", "content": text}] + ([reply] if reply else [])
            rendered = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False)
            assert tokenizer.decode(rollout.ids) + "\n" == rendered

    def test_weights_may_change_inside_a_rollout(self, batch):
        versions = batch["versions"].masked_fill(~batch["loss_mask"], 9).min(1).values
        assert (versions < batch["versions"].max(1).values).any()

    def test_every_sampled_turn_has_its_time_and_no_two_run_at_once(self, batch):
        for turns, spans in zip(batch["turn_ids"], batch["timings"], strict=True):
            sampled = [span for span in spans if span["kind"] == "generate"]
            assert {span["turn"] for span in sampled} == set(turns[turns >= 0].tolist())
            assert all(a["end"] <= b["start"] for a, b in itertools.pairwise(spans))
        versions = {span.get("version") for spans in batch["timings"] for span in spans}
        assert versions >= {0, 1}

    def test_a_call_to_a_host_that_is_down_takes_its_time_and_holds_no_other_rollout(self, tokenizer, model):
        from tiny_grpo.learner import make_batch, recomputed_logprobs
        from tiny_grpo.sampler import Sampler
        from tiny_grpo.task import World, make_problem

        world, rng = World(), random.Random(5)
        world.hosts[1].down = True
        sampler = Sampler(tokenizer, group_size=4, seed=5, world=world)
        sampler.start(make_problem(rng))
        sampler.start(make_problem(rng))
        groups = sampler.collect(model, version=0, n_groups=2)
        batch = make_batch(groups, tokenizer.pad_token_id, train_version=0, device="cpu")
        torch.testing.assert_close(recomputed_logprobs(model, batch), batch["logprobs"], atol=2e-4, rtol=0)
        failed = [s for spans in batch["timings"] for s in spans if "timed out" in s.get("error", "")]
        assert failed and all(s["end"] > s["start"] for s in failed)
        others = [s for spans in batch["timings"] for s in spans if s["kind"] == "generate"]
        assert any(s["start"] < failed[0]["end"] and s["end"] > failed[0]["start"] for s in others)

    def test_a_rollout_that_is_too_long_is_cut(self, groups):
        cut = [r for group in groups for r in group if r.stop_reason == "length"]
        assert cut and all(rollout.n_sampled == 60 for rollout in cut)


class TestLearner:
    def test_advantages_are_rewards_in_units_of_the_groups_spread(self):
        from tiny_grpo.learner import group_advantages

        advantages = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]))
        assert advantages.tolist() == [1.0, -1.0, -1.0, 1.0]
        assert group_advantages(torch.tensor([0.3, 0.3, 0.3])).tolist() == [0.0, 0.0, 0.0]

    def test_the_loss_is_clipped_and_weighted_for_staleness(self):
        from tiny_grpo.learner import policy_loss

        prox = torch.tensor([[0.0, -1.0]])
        new = prox + torch.log(torch.tensor([[1.0, 1.5]]))
        rollout = prox - torch.log(torch.tensor([[1.0, 5.0]]))
        mask = torch.tensor([[True, True]])
        # ratios 1 and 1.5 (clipped to 1.28), weights 1 and 5 (capped at 2), advantage 2
        expected = -(1.0 * 2 + 2.0 * 1.28 * 2)
        assert policy_loss(new, prox, rollout, torch.tensor([2.0]), mask).item() == pytest.approx(expected)

    def test_discarded_rows_leave_the_weights_alone(self, tokenizer, model):
        from tiny_grpo.learner import update

        batch = {"discard_reasons": ["zero_advantage"] * 8}
        assert update(model, None, batch, torch.zeros(8, 4)) == {}


@pytest.mark.slow
class TestLearning:
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_the_reward_climbs(self, script, trackio_dir, seed):
        history = script.main(["--seed", str(seed), "--max-rollout-traces-per-step", "0"])
        first, last = history.first_and_last(steps=8)
        assert len(history.reward) >= 40
        assert last - first >= 0.15

    def test_without_learning_it_stays(self, script, trackio_dir):
        history = script.main(["--lr", "0", "--max-rollout-traces-per-step", "0"])
        first, last = history.first_and_last(steps=8)
        assert abs(last - first) < 0.05
