"""Logs two rollouts that the viewers of this folder draw: a game of noughts and crosses, and a search in a shop."""

from __future__ import annotations

import json
from typing import Any

import rollout_traces as rt

GAME = [
    ({"row": 1, "column": 1}, {"board": ["...", ".X.", "O.."]}),
    ({"row": 0, "column": 0}, {"board": ["X..", ".X.", "O.O"]}),
    ({"row": 2, "column": 1}, {"board": ["X..", ".X.", "OXO"], "next": "O plays 0, 1"}),
    ({"row": 0, "column": 2}, {"board": ["XOX", ".X.", "OXO"]}),
]
SHOP = [
    ("goto", {"url": "https://shop.example"}, {"title": "Shop", "text": "Search | Basket (0)"}),
    (
        "type",
        {"into": "search", "text": "kettle"},
        {"title": "kettle: 2 results", "text": "Kettle A, 19\nKettle B, 35"},
    ),
    ("click", {"on": "Kettle A"}, {"title": "Kettle A", "text": "1.7 l, 19. <b>Add to basket</b>"}),
    ("click", {"on": "Add to basket"}, {"title": "Basket (1)", "text": "Kettle A, 19"}),
]


def conversation(
    task: str, steps: list[tuple[str, dict[str, Any], dict[str, Any]]], end: str
) -> list[dict[str, Any]]:
    """A task, each step as a tool call and its answer, and the last words."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for at, (name, arguments, result) in enumerate(steps):
        call = {
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
    return [*messages, {"role": "assistant", "content": end}]


def main() -> None:
    """Logs them to the project `games`."""
    moves = [("play", given, result) for given, result in GAME]
    batch = rt.RolloutBatch.from_messages(
        [
            conversation("You are X. Win.", moves, "A draw is near."),
            conversation("Put the cheaper kettle into the basket.", SHOP, "Done."),
        ],
        rewards=[0.5, 1.0],
        group_ids=[0, 1],
        sources=["noughts and crosses", "shop"],
    )
    logger = rt.RolloutLogger(project="games", name="run-001", max_rollout_traces_per_step=8, worker="thread")
    logger.log_rollouts(batch, step=1)
    logger.finish()


if __name__ == "__main__":
    main()
