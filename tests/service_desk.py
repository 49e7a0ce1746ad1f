"""Generated conversations of a parcel service's desk: an agent with tools, ten tasks with four trials each.

They have what conversations with real customers have: a long policy as system prompt, users who change their mind,
calls with nested arguments, results of a few hundred bytes of JSON, results that are errors, answers in markdown, and
an end on the user's or a tool's message. Everything is drawn from a seed.
"""

from __future__ import annotations

import functools
import json
import random
import re
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

N_TASKS, N_TRIALS = 10, 4
CITIES = (
    "Lyon",
    "Graz",
    "Porto",
    "Gdańsk",
    "Malmö",
    "Turin",
    "Ghent",
    "Split",
    "Bergen",
    "Tartu",
    "Cork",
    "Brno",
)
NAMES = (
    "Ada Novak",
    "Ben Okoye",
    "Carla Lindqvist",
    "Dev Raman",
    "Elif Yılmaz",
    "Femi Adeyemi",
    "Greta Holm",
    "Hana Mori",
)
GOODS = (
    "a pair of boots",
    "two books",
    "a desk lamp",
    "a bicycle bell",
    "a tea set",
    "a winter coat",
    "a router",
    "a violin string",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
ERRORS = (
    "Error: no parcel with this number",
    "Error: the slot is taken",
    "Error: payment method is not on file",
    "Error: the address is outside the zone",
)
POLICY = """# Parcel desk policy

You help customers of a parcel service: where a parcel is, other addresses, other days, refunds.

- List what you are about to change and wait for a plain yes before you change it.
- Say nothing about a parcel that the tools do not say.
- One tool call at a time; while you call a tool you do not answer the customer.
- A parcel that is out for delivery keeps its address. A day can be moved up to twice.
- A refund needs a reason and goes to the method that was paid with. Gift cards are never refunded in money.
- Hand over to a person only where none of this helps."""
ASKS = (
    "Hello, I am waiting for {goods}, number {number}. Where is it?",
    "Hi! My parcel {number} should have come to {city} on {day} and nobody rang.",
    "Can you send {number} to another address? I moved to {city} last week.",
    "I would like my money back for {number}, {goods} arrived broken.",
    "hey, {number}: can it come on {day} instead?? i'm not home before",
)
REPLIES = (
    "Let me look up parcel {number} for you.",
    "Thank you, {name}. The parcel with {goods} left the depot in {city} on {day}.",
    "It is in {city} now and will reach you within {days} business days.",
    "I can move the delivery to {day} between {hour} and {later}, free of charge.",
    "To change the address I need the street, the postcode and the town, please.",
    "The parcel is already out for delivery, so its address cannot be changed any more.",
    "A refund of {price} EUR would go back to the card that ends in {last}.",
    "Shall I go ahead with {day}? Please answer with yes or no.",
    "I have changed the delivery to {day}; you will get a message from the driver.",
    "I am sorry about {goods}. Could you tell me what was broken when it arrived?",
    "There are {days} parcels on your account, and the newest one goes to {city}.",
    "The neighbour at number {days} signed for {goods} at {hour} on {day}.",
)
DETAILS = (
    "Yes, please do that.",
    "No, {day} does not work for me either. What about {city}?",
    "My name is {name}, the postcode is {last}{days}.",
    "Actually, wait. Can it go to a shop in {city} instead?",
    "It was {goods}, paid with the card that ends in {last}.",
    "That is all, thank you!",
)


@dataclass(frozen=True)
class Record:
    """One conversation.

    Attributes:
        task: which of the ten tasks.
        trial: which of its four trials.
        reward: 0.0 or 1.0.
        messages: OpenAI style, arguments of calls as JSON text.
        n_failed_results: tool results that are errors.
    """

    task: int
    trial: int
    reward: float
    messages: tuple[Message, ...]
    n_failed_results: int


@functools.cache
def records() -> tuple[Record, ...]:
    """All conversations, trials of a task beside each other."""
    return tuple(_Conversation(task, trial).written() for task in range(N_TASKS) for trial in range(N_TRIALS))


@dataclass
class _Conversation:
    task: int
    trial: int
    messages: list[Message] = field(default_factory=list)
    failed: int = 0

    def __post_init__(self) -> None:
        self.of_task = random.Random(f"task {self.task}")
        self.rng = random.Random(f"task {self.task} trial {self.trial}")
        self.facts = self._facts(self.of_task)

    def written(self) -> Record:
        self._say("system", POLICY)
        self._say("user", self.of_task.choice(ASKS))
        for _ in range(self.rng.randint(3, 9)):
            if self.rng.random() < 0.6:
                self._call()
            self._answer()
            self._say("user", self.rng.choice(DETAILS))
        if self.rng.random() < 0.2:
            self._call()
        reward = float(self.task % 5 == 4 and self.rng.random() < 0.6)
        return Record(self.task, self.trial, reward, tuple(self.messages), self.failed)

    @staticmethod
    def _facts(rng: random.Random) -> dict[str, Any]:
        hour = rng.randint(8, 16)
        return {
            "number": f"PX{rng.randint(10**6, 10**7 - 1)}",
            "name": rng.choice(NAMES),
            "goods": rng.choice(GOODS),
            "city": rng.choice(CITIES),
            "day": rng.choice(DAYS),
            "days": rng.randint(2, 9),
            "hour": f"{hour}:00",
            "later": f"{hour + 3}:00",
            "price": f"{rng.uniform(3, 180):.2f}",
            "last": rng.randint(1000, 9999),
        }

    def _say(self, role: str, template: str) -> None:
        facts = self._facts(self.rng) | {"number": self.facts["number"], "name": self.facts["name"]}
        self.messages.append(
            {"role": role, "content": template.format(**facts) if role != "system" else template}
        )

    def _answer(self) -> None:
        said = self.rng.sample(REPLIES, self.rng.randint(1, 3))
        listed = self.rng.random() < 0.3
        self._say(
            "assistant",
            "\n".join(f"{i}. **{each}**" for i, each in enumerate(said, 1)) if listed else " ".join(said),
        )

    def _call(self) -> None:
        name, arguments, result = self.rng.choice(
            (self._track, self._reschedule, self._think, self._refund)
        )()
        call_id = f"call_{self.rng.getrandbits(96):024x}"
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        text = self.rng.choice((None, None, "Let me check that."))
        self.messages.append(
            {
                "role": "assistant",
                "content": text,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            }
        )
        if name != "think" and self.rng.random() < 0.12:
            self.failed += 1
            result = self.rng.choice(ERRORS)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": result})

    def _track(self) -> tuple[str, dict[str, Any], str]:
        stops = [
            {
                "at": f"2025-03-{self.rng.randint(1, 28):02d}T{self.rng.randint(0, 23):02d}:15:00",
                "depot": city,
                "scanned": True,
            }
            for city in self.rng.sample(CITIES, self.rng.randint(1, 5))
        ]
        parcel = {
            "number": self.facts["number"],
            "status": self.rng.choice(("on its way", "out for delivery")),
            "stops": stops,
        }
        return "get_parcel", {"number": self.facts["number"]}, json.dumps(parcel, ensure_ascii=False)

    def _reschedule(self) -> tuple[str, dict[str, Any], str]:
        slot = {"day": self.rng.choice(DAYS), "hours": [self.rng.randint(8, 12), self.rng.randint(13, 19)]}
        return (
            "move_delivery",
            {"number": self.facts["number"], "slot": slot},
            json.dumps({"moved": True, "slot": slot}),
        )

    def _think(self) -> tuple[str, dict[str, Any], str]:
        return "think", {"thought": "The customer has not said yes yet, so I may not change anything."}, ""

    def _refund(self) -> tuple[str, dict[str, Any], str]:
        amount = round(self.rng.uniform(3, 180), 2)
        asked = {
            "number": self.facts["number"],
            "amount": amount,
            "reason": self.rng.choice(("broken", "late", "lost — “never came”")),
        }
        return "refund", asked, f"{amount:.2f} EUR go back to the card"


def sentences() -> tuple[str, ...]:
    """What the agent says, sentence by sentence, 20 to 120 characters each, none twice."""
    said = (m["content"] for r in records() for m in r.messages if m["role"] == "assistant" and m["content"])
    plain = (re.sub(r"^\d+\. |\*\*", "", text, flags=re.MULTILINE) for text in said)
    cut = (one for text in plain for one in re.split(r"(?<=[.?!])\s+", text))
    return tuple(dict.fromkeys(one for one in cut if 20 <= len(one) <= 120))
