"""A tokenizer that a command was given by name."""

from __future__ import annotations

from typing import Any

from rollout_traces.errors import ConfigError, extra


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a folder or a name.

    Raises:
        ConfigError: there is none.
        MissingExtra: transformers is not installed.
    """
    with extra("train", "a tokenizer"):
        from transformers import AutoTokenizer
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError(f"tokenizer: {path}: {reason} Expected a folder with a tokenizer.json.") from error
