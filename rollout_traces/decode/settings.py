"""The settings, beside the tokenizer, by which a run's rollouts are decoded: its trainer's template, or a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.errors import ConfigError

if TYPE_CHECKING:
    from rollout_traces.decode import TemplateMarkers, TranscriptDecoder


@dataclass(frozen=True)
class DecodeSettings:
    """Settings for reading a chat template.

    Attributes:
        dialect: used instead of what is learned from the template.
        chat_template: the Jinja template that prompts are rendered with; None: the tokenizer's own.
        chat_template_kwargs: further arguments of the template (`{"enable_thinking": False}`).
    """

    dialect: TemplateMarkers | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dialect is not None and not hasattr(self.dialect, "openers"):
            raise ConfigError(
                f"dialect: seen {self.dialect!r}. Expected a rollout_traces.decode.TemplateMarkers, or None to learn it from "
                "the chat template."
            )
        if self.chat_template is not None and not isinstance(self.chat_template, str):
            seen = type(self.chat_template).__name__
            raise ConfigError(f"chat_template: seen {seen}. Expected the text of a Jinja template.")
        if not isinstance(self.chat_template_kwargs, Mapping):
            raise ConfigError(
                f"chat_template_kwargs: seen {self.chat_template_kwargs!r}. Expected a mapping of the template's arguments."
            )

    def decoder(self, tokenizer: Any) -> TranscriptDecoder:
        """The decoder of a tokenizer with these settings."""
        from rollout_traces.decode import TranscriptDecoder

        return TranscriptDecoder(
            tokenizer,
            dialect=self.dialect,
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs,
        )

    def as_plain(self) -> dict[str, Any] | None:
        """Plain values that another process reads with `from_plain`; None where JSON cannot hold them."""
        kwargs = dict(self.chat_template_kwargs)
        try:
            plain = {
                "dialect": None if self.dialect is None else self.dialect.to_dict(),
                "chat_template": self.chat_template,
                "chat_template_kwargs": kwargs,
            }
            same = orjson.loads(orjson.dumps(kwargs)) == kwargs
        except (AttributeError, TypeError):
            return None
        return plain if same else None

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> DecodeSettings:
        """The settings that `as_plain` gave, also after JSON."""
        dialect = values.get("dialect")
        if dialect is not None:
            from rollout_traces.decode import TemplateMarkers

            dialect = TemplateMarkers.from_dict(dialect)
        return cls(dialect, values.get("chat_template"), values.get("chat_template_kwargs") or {})
