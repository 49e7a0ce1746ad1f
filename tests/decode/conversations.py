"""Conversations with tools: short ones with odd text, and those of the service desk."""

from __future__ import annotations

import json
import random
from typing import Any

from tests import service_desk

Messages = list[dict[str, Any]]

_CITIES = ("Paris", "Zürich", "東京", "São Paulo", "Kraków 🏰", "Reykjavík")
_QUESTIONS = (
    "How is the weather in {}?",
    "\n{}: rain or sun?\n\nBe quick.",
    '{{"city": "{}"}} please',
    "Is it </b> warm in {}?   ",
    "Why does my file say <tool_call> when I ask about {}?",
)


def desk_conversations() -> list[Messages]:
    """The 40 conversations of the service desk."""
    return [list(record.messages) for record in service_desk.records()]


def own_conversations(n: int = 24, seed: int = 7) -> list[Messages]:
    """Generated conversations: several turns, calls with nested arguments, results in a row, odd text."""
    rng = random.Random(seed)
    return [_own(rng) for _ in range(n)]


def _own(rng: random.Random) -> Messages:
    messages: Messages = [{"role": "system", "content": "You answer questions about the weather."}]
    for turn in range(rng.randint(1, 6)):
        city = rng.choice(_CITIES)
        messages.append({"role": "user", "content": rng.choice(_QUESTIONS).format(city)})
        for step in range(rng.randint(0, 2)):
            call_id = f"call{turn}x{step}yz"[:9].ljust(9, "0")
            arguments = {
                "city": city,
                "days": rng.randint(1, 9),
                "units": ["°C", {"wind": rng.random() < 0.5}],
            }
            function = {
                "name": rng.choice(("get_weather", "get_forecast")),
                "arguments": json.dumps(arguments),
            }
            messages.append(
                {
                    "role": "assistant",
                    "content": rng.choice((None, f"Let me look up {city}.")),
                    "tool_calls": [{"id": call_id, "type": "function", "function": function}],
                }
            )
            result = rng.choice(
                (f"{city}: 17 °C", json.dumps({"temp": 17, "city": city}), "Error: timeout\n")
            )
            messages.append(
                {"role": "tool", "content": result, "tool_call_id": call_id, "name": function["name"]}
            )
        messages.append({"role": "assistant", "content": f"It is fine in {city}. **Ünïcödé** 😀\n\n- a\n- b"})
    return messages


def tools_of(messages: Messages) -> list[dict[str, Any]]:
    """OpenAI-style definitions of the tools that a conversation calls, read off its arguments."""
    properties: dict[str, dict[str, Any]] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            arguments = json.loads(call["function"]["arguments"])
            known = properties.setdefault(call["function"]["name"], {})
            known.update({key: {"type": _type_of(value)} for key, value in arguments.items()})
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Calls {name}.",
                "parameters": {"type": "object", "properties": known, "required": sorted(known)},
            },
        }
        for name, known in sorted(properties.items())
    ]


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]
