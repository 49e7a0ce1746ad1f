"""Tokenizers that a command was given by name, or that render as their trainer renders."""

from __future__ import annotations

from collections.abc import Mapping
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


class TemplatedTokenizer:
    """A tokenizer with a template and arguments of its own; everything else is the tokenizer's.

    Args:
        tokenizer: an object with `apply_chat_template`.
        chat_template: used instead of the tokenizer's own, unless None.
        kwargs: further arguments of the template.
    """

    def __init__(self, tokenizer: Any, chat_template: str | None, kwargs: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._arguments = dict(kwargs)
        if chat_template is not None:
            self._arguments["chat_template"] = chat_template

    @property
    def chat_template(self) -> Any:
        """The template that is rendered with."""
        return self._arguments.get("chat_template") or getattr(self._tokenizer, "chat_template", None)

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """The tokenizer's, with the template and its arguments where the caller gives no others."""
        return self._tokenizer.apply_chat_template(conversation, **{**self._arguments, **kwargs})

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        if name == "_tokenizer":
            raise AttributeError(name)
        return getattr(self._tokenizer, name)
