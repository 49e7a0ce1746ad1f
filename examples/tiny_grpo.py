"""Train a tiny tool-using language model with GRPO on two CPU cores, and log its rollouts."""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field

import torch
from tiny_grpo.learner import (
    CLIP_HIGH,
    CLIP_LOW,
    MAX_STALENESS_WEIGHT,
    make_batch,
    recomputed_logprobs,
    update,
)
from tiny_grpo.model import make_model, train_tokenizer
from tiny_grpo.sampler import Sampler, now
from tiny_grpo.task import REWARD_WEIGHTS, Problem, World, make_problem
from tiny_grpo.warm_up import tokenizer_texts, warm_up

import rollout_traces as rt

EXAMPLES = """examples:
  python examples/tiny_grpo.py                                a whole run, one and a half to two minutes on two cores
  python examples/tiny_grpo.py --steps 4 --warmup-steps 60    a short one
  python examples/tiny_grpo.py --lr 0 --name no-learning      the same without learning
"""

DECLARED = {
    "clip_low": CLIP_LOW,
    "clip_high": CLIP_HIGH,
    "importance_cap": MAX_STALENESS_WEIGHT,
    "component_weights": REWARD_WEIGHTS,
}
"""What the loss and the reward do, for metrics and overlays that need to know it."""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--project", default="tiny-grpo", help="Trackio project (default: %(default)s)")
    parser.add_argument("--name", help="name of the run (default: seed-SEED)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40, help="GRPO steps (default: %(default)s)")
    parser.add_argument(
        "--warmup-steps", type=int, default=600, help="most supervised steps (default: %(default)s)"
    )
    parser.add_argument(
        "--lr", type=float, default=2.5e-4, help="GRPO's learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--prompts-per-step", type=int, default=8, help="groups a step (default: %(default)s)"
    )
    parser.add_argument(
        "--prompts-ahead", type=int, default=2, help="further groups in flight (default: %(default)s)"
    )
    parser.add_argument("--group-size", type=int, default=8, help="rollouts a prompt (default: %(default)s)")
    parser.add_argument(
        "--train-prompts", type=int, default=64, help="problems to cycle over (default: %(default)s)"
    )
    parser.add_argument(
        "--eval-every", type=int, default=8, help="steps between evaluations (default: %(default)s)"
    )
    parser.add_argument(
        "--max-rollout-traces-per-step", type=int, default=32, help="0: none (default: %(default)s)"
    )
    parser.add_argument(
        "--trouble", action="store_true", help="a tool host fails, and a reward changes, half-way"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    return parser.parse_args(argv)


@dataclass
class History:
    """Mean reward and success of all rollouts of each step, and where the time went."""

    reward: list[float] = field(default_factory=list)
    success: list[float] = field(default_factory=list)

    def first_and_last(self, steps: int) -> tuple[float, float]:
        """Return the mean reward of the first and of the last ``steps`` steps."""
        n = max(1, min(steps, len(self.reward) // 2))
        return sum(self.reward[:n]) / n, sum(self.reward[-n:]) / n


def draw_problems(args: argparse.Namespace) -> tuple[list[Problem], list[Problem]]:
    """Draw the problems to train on, and those held out for evaluation."""
    rng = random.Random(args.seed + 100)
    return [make_problem(rng) for _ in range(args.train_prompts)], [make_problem(rng) for _ in range(16)]


def train(model, tokenizer, args: argparse.Namespace, logger: rt.RolloutLogger) -> History:
    """Run GRPO; after the update of step n the policy version is n + 1."""
    problems, held_out = draw_problems(args)
    world = World()
    sampler = Sampler(tokenizer, args.group_size, args.seed, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    history, started = History(), 0
    print(f"Then {args.steps} steps of GRPO:\nstep  reward  success  tokens  seconds", flush=True)
    for step in range(args.steps):
        begin = time.perf_counter()
        if args.trouble:
            world.go_wrong(step)
        if step % args.eval_every == 0:
            logger.log_rollouts(
                evaluate(model, tokenizer, held_out, step, args), step=step, split="eval-rollout"
            )

        wanted = args.prompts_per_step + args.prompts_ahead - len(sampler.groups)
        for _ in range(wanted):
            sampler.start(problems[started % len(problems)])
            started += 1
        groups = sampler.collect(model, version=step, n_groups=args.prompts_per_step)
        batch = make_batch(groups, tokenizer.pad_token_id, train_version=step, device=args.device)
        handle = logger.log_rollouts(
            rt.RolloutBatch(**batch),
            step=step,
            split="rollout",
            await_join=("prox_logprobs", "new_logprobs"),
        )
        update_begin = now()
        prox_logprobs = recomputed_logprobs(model, batch)
        handle.join(prox_logprobs=prox_logprobs)
        stats = update(model, optimizer, batch, prox_logprobs)
        handle.join(new_logprobs=recomputed_logprobs(model, batch))
        seconds = time.perf_counter() - begin
        phases = {"phase/update/start": update_begin, "phase/update/end": now()}
        logger.log_scalars(
            {f"train/{name}": v for name, v in stats.items()}
            | phases
            | {"time/step": seconds, "funnel/prompts_loaded": wanted},
            step=step,
        )

        history.reward.append(batch["rewards"].mean().item())
        history.success.append(sum(batch["successes"]) / len(batch["successes"]))
        n_tokens = int(batch["loss_mask"].sum())
        print(
            f"{step:4d}  {history.reward[-1]:6.3f}  {history.success[-1]:7.2f}  {n_tokens:6d}  {seconds:7.2f}",
            flush=True,
        )
    return history


def evaluate(
    model, tokenizer, problems: list[Problem], version: int, args: argparse.Namespace
) -> rt.RolloutBatch:
    """Sample a group of four for each held-out problem, always the same ones."""
    sampler = Sampler(tokenizer, group_size=4, seed=args.seed)
    for problem in problems:
        sampler.start(problem)
    groups = sampler.collect(model, version, n_groups=len(problems))
    batch = make_batch(groups, tokenizer.pad_token_id, train_version=version, device=args.device)
    return rt.RolloutBatch(**batch | {"discard_reasons": None, "advantages": None})


def main(argv: list[str] | None = None) -> History:
    args = parse_args(argv)
    print("A tiny model first learns the format by imitation, half a minute or so …", flush=True)
    begin = time.perf_counter()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    torch.manual_seed(args.seed)
    tokenizer = train_tokenizer(tokenizer_texts(args.seed))
    model = make_model(tokenizer).to(args.device)
    success = warm_up(model, tokenizer, draw_problems(args)[0], args.seed, args.warmup_steps)

    logger = rt.RolloutLogger(
        project=args.project,
        name=args.name or f"seed-{args.seed}",
        tokenizer=tokenizer,
        max_rollout_traces_per_step=args.max_rollout_traces_per_step,
        reward_range=(0.0, 1.0),
        config=vars(args)
        | {"reward_weights": REWARD_WEIGHTS, "temperature": 1.0, "warmup_success": success}
        | {"rollout_traces": DECLARED},
    )
    history = train(model, tokenizer, args, logger)
    logger.finish()
    first, last = history.first_and_last(steps=args.train_prompts // args.prompts_per_step)
    print(f"reward {first:.3f} -> {last:.3f} ({last - first:+.3f}), {time.perf_counter() - begin:.0f} s")
    return history


if __name__ == "__main__":
    main()
