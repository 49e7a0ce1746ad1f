"""How many turns of real conversations come back equal, per tokenizer.

Encodes conversations with each tokenizer's own chat template, decodes the ids, and compares role, content, tool names
and arguments with what the template rendered. Run it from the repository's root:

    python -m benchmarks.decode_fidelity
"""

from __future__ import annotations

import logging

from tests.decode.conversations import desk_conversations, own_conversations
from tests.decode.fidelity import RULES, score
from tests.decode.real_tokenizers import load_tokenizer


def main() -> None:
    """Prints one line per tokenizer and set of conversations."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    sets = {"own": own_conversations(), "service desk": desk_conversations()}
    print(f"{'tokenizer':<10} {'conversations':<16} {'turns':>6} {'equal':>6} {'calls':>6} {'equal':>6}")
    for name in RULES:
        tokenizer = load_tokenizer(name)
        for label, conversations in sets.items():
            if not conversations:
                print(f"{name:<10} {label:<16} not found beside the repository")
                continue
            result = score(name, tokenizer, conversations)
            print(
                f"{name:<10} {label:<16} {result.turns:>6} {result.equal:>6} "
                f"{result.calls:>6} {result.calls_equal:>6}"
            )
            for miss in result.misses:
                print(f"    {miss}")


if __name__ == "__main__":
    main()
