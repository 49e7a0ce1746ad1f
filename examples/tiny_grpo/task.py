"""Arithmetic word problems, a calculator tool, and a verifiable reward."""

from __future__ import annotations

import ast
import json
import operator
import random
import re
from dataclasses import dataclass, field
from typing import Any

SYSTEM = "Solve the problem with the calculator, then give the result in \\boxed{}."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluate an expression.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]
MAX_TOOL_CALLS = 3
REWARD_WEIGHTS = {"correct": 0.8, "format": 0.15, "brevity": 0.05}
HOST_DOWN = range(18, 26)
STRICTER_FROM = 22
"""When a troubled run's second tool host is down, and since when short means shorter."""
TIMEOUT = 40
"""Turns of the sampler's loop until a call to a host that is down is given up."""

NAMES = ["Mia", "Leo", "Ana", "Tom", "Eva", "Sam", "Zoe", "Max", "Ida", "Ben"]
THINGS = ["apples", "books", "coins", "stamps", "shells", "cards", "pens", "cakes"]
# family -> (question, thought, expression); a to d are whole numbers, bc = b * c
FAMILIES = {
    "add": ("{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
            "{a} {things} and {b} more, so add.", "{a} + {b}"),
    "take": ("{name} had {a} {things} but lost {b} of them. How many {things} are left?",
             "{a} {things} less {b}, so subtract.", "{a} - {b}"),
    "bags": ("{name} buys {b} bags with {c} {things} each. How many {things} is that?",
             "{b} bags of {c}, so multiply.", "{b} * {c}"),
    "share": ("{name} shares {bc} {things} among {b} friends. How many {things} does each friend get?",
              "{bc} {things} for {b} friends, so divide.", "{bc} / {b}"),
    "top_up": ("{name} has {a} {things} and buys {b} bags with {c} each. How many {things} does {name} have now?",
               "{a} {things} and {b} bags of {c}.", "{a} + {b} * {c}"),
    "eat": ("{name} fills {b} boxes with {c} {things} each and gives {d} away. How many {things} are left?",
            "{b} boxes of {c} less {d}.", "{b} * {c} - {d}"),
    "days": ("Every day {name} finds {c} red and {d} blue {things}. How many {things} is that after {b} days?",
             "{c} and {d} a day for {b} days.", "({c} + {d}) * {b}"),
}  # fmt: skip
FOLLOW_UPS = {
    "more": ("Then {name} finds {e} more. How many now?", "{last} and {e} more, so add.", "{last} + {e}"),
    "twice": ("What if {name} had {e} times as many?", "{last} times {e}, so multiply.", "{last} * {e}"),
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One prompt, its hidden second question if it has one, and the true answers.

    Attributes:
        key: The same for every rollout of this problem, whatever the step.
        family: Which kind of word problem it is.
        questions: One or two user turns.
        thoughts: What a good solver thinks for each question.
        expressions: What a good solver computes for each question.
        answers: The true result of each question.
    """

    key: str
    family: str
    questions: tuple[str, ...]
    thoughts: tuple[str, ...]
    expressions: tuple[str, ...]
    answers: tuple[str, ...]


def make_problem(rng: random.Random) -> Problem:
    """Draw a problem; about one in five has a follow-up question."""
    family = rng.choice(list(FAMILIES))
    b, c, d = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    words: dict[str, Any] = {"name": rng.choice(NAMES), "things": rng.choice(THINGS), "b": b, "c": c, "d": d}
    words |= {"a": rng.randint(10, 60), "bc": b * c, "e": rng.randint(2, 9)}
    if family == "eat":
        words["d"] = rng.randint(2, min(9, b * c - 1))
    parts = [FAMILIES[family]]
    if rng.random() < 0.2:
        parts.append(FOLLOW_UPS[rng.choice(list(FOLLOW_UPS))])
    questions, thoughts, expressions, answers = [], [], [], []
    for question, thought, expression in parts:
        questions.append(question.format(**words))
        thoughts.append(thought.format(**words))
        expressions.append(expression.format(**words))
        answers.append(calculate(expressions[-1]))
        words["last"] = answers[-1]
    key = f"{family}-{rng.getrandbits(32):08x}"
    return Problem(key, family, tuple(questions), tuple(thoughts), tuple(expressions), tuple(answers))


OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculate(expression: str) -> str:
    """Evaluate + - * / on numbers without ``eval``; anything else gives ``error: ...``."""

    def value(node: ast.AST) -> float:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("only numbers and + - * / are allowed")

    try:
        if len(expression) > 100:
            raise ValueError("the expression is too long")
        result = round(value(ast.parse(expression.strip(), mode="eval").body), 2)
        return str(int(result)) if result == int(result) else str(result)
    except SyntaxError:
        return "error: invalid syntax"
    except (ValueError, ArithmeticError, RecursionError) as error:
        return f"error: {error}"


TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass
class ToolHost:
    """A machine that runs the calculator; every call to one that is down times out."""

    name: str
    down: bool = False

    @property
    def waits(self) -> int:
        """Turns of the sampler's loop until a call is answered."""
        return TIMEOUT if self.down else 0

    def run(self, text: str) -> str:
        """Answer the call in an assistant turn."""
        return f"error: {self.name} timed out" if self.down else run_tool(text)


@dataclass
class World:
    """What the environment does now.

    Attributes:
        hosts: Where calls go; the rollouts of a group take turns.
        short: Tokens a question up to which an answer is a short one.
    """

    hosts: tuple[ToolHost, ...] = field(default_factory=lambda: (ToolHost("calc-a"), ToolHost("calc-b")))
    short: int = 60

    def go_wrong(self, step: int) -> None:
        """Be as a troubled run's environment is at a step: one host is down, and then the rules change."""
        self.hosts[1].down = step in HOST_DOWN
        self.short = 40 if step >= STRICTER_FROM else 60


class Episode:
    """The environment of one rollout: answers tool calls, asks the follow-up, scores the end."""

    def __init__(self, problem: Problem, host: ToolHost | None = None, short: int = 60) -> None:
        self.problem = problem
        self.host = host or ToolHost("calc-a")
        self.short = short
        self.boxed: list[str | None] = []
        self.tool_calls = 0
        self.tool_errors = 0
        self.well_formed = True

    def opening(self) -> list[dict[str, str]]:
        """Return the messages the model answers first."""
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.problem.questions[0]}]

    def reply(self, text: str) -> tuple[dict[str, str] | None, str | None]:
        """Answer an assistant turn.

        Args:
            text: What the model wrote, without the end marker.

        Returns:
            The next message, if any, and the reason to stop, if it is time to.
        """
        if "<tool_call>" in text:
            self.tool_calls += 1
            result = self.host.run(text)
            self.tool_errors += result.startswith("error")
            self.well_formed &= (
                not result.startswith("error") and text.startswith("<think>") and "</think>" in text
            )
            stop = "max_turns" if self.tool_calls >= MAX_TOOL_CALLS * len(self.problem.questions) else None
            return {"role": "tool", "content": result}, stop
        found = BOXED.findall(text)
        self.boxed.append(found[-1].strip() if found else None)
        self.well_formed &= bool(found) and self.tool_calls >= len(self.boxed)
        if len(self.boxed) == len(self.problem.questions):
            return None, "stop"
        return {"role": "user", "content": self.problem.questions[len(self.boxed)]}, None

    @property
    def last_box(self) -> str | None:
        """The latest final answer; None when there is none."""
        return self.boxed[-1] if self.boxed else None

    @property
    def success(self) -> bool:
        """Whether every question got its right answer."""
        return tuple(self.boxed) == self.problem.answers

    def score(self, n_sampled: int) -> dict[str, float]:
        """Score the rollout.

        Args:
            n_sampled: Tokens the model wrote.

        Returns:
            The components, each in [0, 1]: share of questions answered correctly, whether every turn
            was well formed and the end was reached, and how short it was.
        """
        answers = self.problem.answers
        correct = sum(box == answer for box, answer in zip(self.boxed, answers, strict=False)) / len(answers)
        finished = len(self.boxed) == len(answers)
        per_question = n_sampled / len(answers)
        brevity = 1.0 if per_question <= self.short else 0.5 if per_question <= 1.5 * self.short else 0.0
        return {
            "correct": correct,
            "format": float(finished and self.well_formed),
            "brevity": brevity * finished,
        }


def run_tool(text: str) -> str:
    """Run the calculator call found in an assistant turn; a bad call gives ``error: ...``."""
    match = TOOL_CALL.search(text)
    if match is None:
        return "error: the call is not closed"
    try:
        call = json.loads(match.group(1))
    except (json.JSONDecodeError, RecursionError):
        return "error: the call is not valid JSON"
    if not isinstance(call, dict) or call.get("name") != "calculator":
        return "error: no such tool"
    arguments = call.get("arguments")
    expression = arguments.get("expression") if isinstance(arguments, dict) else None
    return calculate(expression) if isinstance(expression, str) else "error: expression must be a string"


def total_reward(components: dict[str, float]) -> float:
    """Weigh the components into one reward in [0, 1]."""
    return sum(REWARD_WEIGHTS[name] * value for name, value in components.items())
