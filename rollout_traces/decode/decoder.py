"""Rollouts in token ids -> transcripts.

A caller's tokens and tracks are made into numpy arrays of one length. A run's settings, beside its tokenizer, are its
trainer's template or a dialect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from rollout_traces.decode.content import Reader, pair_results
from rollout_traces.decode.detokenizer import Detokenized, Detokenizer, char_ends
from rollout_traces.decode.grammars import grammars_for, parameters_by_tool
from rollout_traces.decode.markers import Markers, Row, TemplateMarkers
from rollout_traces.decode.messages import align, row_from_messages, rows_with_messages
from rollout_traces.decode.probe import learn
from rollout_traces.decode.segment import segment
from rollout_traces.decode.spans import (
    Provenance,
    Span,
    by_mask,
    on_token_edges,
    return_stop_tokens,
    skip_generation_prompt,
    split_by_provenance,
)
from rollout_traces.decode.vocabulary import TemplatedTokenizer
from rollout_traces.errors import ConfigError, DecodeError
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.text import quoted
from rollout_traces.model.transcript import INT_TRACKS, Source, TokenTrack, Transcript, Turn, int_track
from rollout_traces.model.units import LARGEST_EXACT


class TranscriptDecoder:
    """Turns rollouts into transcripts for one tokenizer and chat template.

    Attributes:
        dialect: the chat template's markers, learned or given.
        detokenizer: the tokenizer's verified byte table.
        tokenizer: what it was built for, for whoever renders the chat template again; it does so with the
            template and the arguments given here. None where a dialect was given.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        dialect: TemplateMarkers | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Builds the byte table and learns the dialect; both are kept for all later calls.

        Args:
            tokenizer: a transformers tokenizer or a `tokenizers.Tokenizer`.
            dialect: used instead of learning one.
            chat_template: used instead of the tokenizer's own.
            chat_template_kwargs: further arguments of the template (`{"enable_thinking": False}`).

        Raises:
            ConfigError: the tokenizer is none.
        """
        self.detokenizer = Detokenizer(tokenizer)
        self.tokenizer = None if dialect is not None else tokenizer
        changed = chat_template is not None or bool(chat_template_kwargs)
        if dialect is None and changed and hasattr(tokenizer, "apply_chat_template"):
            self.tokenizer = TemplatedTokenizer(tokenizer, chat_template, chat_template_kwargs or {})
        template = chat_template if chat_template is not None else _template_of(tokenizer)
        self.dialect = dialect or _learned(tokenizer, chat_template, template, chat_template_kwargs or {})
        self._markers = Markers(self.dialect, self.detokenizer)
        self._reader = Reader(self.dialect, grammars_for(template, tokenizer))
        self._is_marker = np.zeros(self.detokenizer.n_ids + 1, bool)
        self._is_marker[self._markers.marker_ids] = True

    def decode(
        self,
        input_ids: Any,
        *,
        loss_mask: Any = None,
        response_mask: Any = None,
        turn_ids: Any = None,
        versions: Any = None,
        tracks: Mapping[str, Any] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        stop_reason: str | None = None,
    ) -> Transcript:
        """Decodes one rollout; any ids give a transcript.

        Args:
            input_ids: [n] token ids without padding; lists, numpy arrays or CPU tensors.
            loss_mask: [n], nonzero where the token contributes to the loss.
            response_mask: [n], nonzero where the policy sampled the token. When missing it is
                `versions >= 0`, else the loss mask.
            turn_ids: [n] integers, which call of the policy sampled the token; -1 = not sampled.
            versions: [n] integers, policy version that sampled the token; -1 = not sampled.
            tracks: further [n] float arrays by name (`logprobs`, `advantages`, ...).
            messages: the row's structured conversation, OpenAI style.
            tools: tool definitions the conversation was given, OpenAI style.
            stop_reason: why generation stopped, where the trainer knows it. A reason that says the answer
                was finished and an answer without an end marker are a warning.

        Returns:
            The transcript; its turns partition the tokens.

        Raises:
            DecodeError: arrays that cannot belong to one rollout; names the array and both shapes.
        """
        arrays = row_arrays(
            input_ids,
            loss_mask=loss_mask,
            response_mask=response_mask,
            tracks={"turn_ids": turn_ids, "versions": versions, **(tracks or {})},
        )
        text = self.detokenizer.detokenize(arrays.input_ids)
        return self._transcript(arrays, text, messages, tools, stop_reason)

    def readable(self, packed_batch: PackedBatch) -> np.ndarray:
        """bool [B]: the rows that a transcript can be made of: of tokens, else of messages."""
        return packed_batch.has_tokens | rows_with_messages(packed_batch)

    def decode_batch(self, packed_batch: PackedBatch, rows: Sequence[int]) -> list[Transcript]:
        """Decodes rows of a hand-over.

        Args:
            packed_batch: the step's rollouts on the host.
            rows: which of them, in the order wanted.

        Returns:
            One transcript a row. A row whose tokens were left behind gives one without turns that
            says so.
        """
        slices = [packed_batch.row(int(b)) for b in rows]
        ids_N = np.concatenate([packed_batch.input_ids[s] for s in slices] or [np.zeros(0, np.int64)])
        whole = self.detokenizer.detokenize(ids_N)
        transcripts = []
        first = 0
        for b, where in zip(rows, slices, strict=True):
            n = where.stop - where.start
            if not packed_batch.has_tokens[b] and packed_batch.conversation(int(b)):
                transcripts.append(row_from_messages(packed_batch, int(b)))
                continue
            starts = whole.starts[first : first + n + 1]
            text = Detokenized(whole.data[int(starts[0]) : int(starts[-1])], starts - starts[0])
            first += n
            left = () if packed_batch.has_tokens[b] else ("the row's tokens were left behind to save memory",)
            arrays = RowArrays(
                packed_batch.input_ids[where],
                packed_batch.loss_mask[where],
                packed_batch.response_mask[where],
                {name: track[where] for name, track in packed_batch.tracks.items()},
                left,
            )
            transcripts.append(
                self._transcript(
                    arrays,
                    text,
                    packed_batch.conversation(int(b)),
                    packed_batch.row_value("tools", int(b)),
                    packed_batch.row_value("stop_reasons", int(b)),
                )
            )
        return transcripts

    def _transcript(
        self,
        arrays: RowArrays,
        text: Detokenized,
        messages: Sequence[Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        stop_reason: Any,
    ) -> Transcript:
        slots = self.detokenizer.slots(arrays.input_ids)
        provenance = Provenance.of(arrays.response_mask, arrays.tracks)
        spans, source = self._spans(provenance, arrays.input_ids, text, slots)
        edges = [int(text.starts[span.start]) for span in spans] + [len(text.data)]
        raws, ends = char_ends(text.data, text.starts, edges)
        tokens = TokenTrack(
            input_ids=arrays.input_ids,
            loss_mask=arrays.loss_mask,
            response_mask=arrays.response_mask,
            char_starts=ends[:-1],
            char_stops=ends[1:],
            special=self.detokenizer.special[slots],
            tracks=arrays.tracks,
        )
        known_tools = tuple(tools) if tools else self._reader.definitions(spans, text.data)
        turns = self._turns(spans, raws, provenance, text, known_tools)
        warnings = [
            *arrays.warnings,
            *self._warnings(arrays, source),
            *_end_warnings(turns, source, stop_reason),
        ]
        if messages:
            aligned = align(turns, messages)
            turns, source = aligned.turns, "messages" if aligned.agrees else source
            warnings.extend(aligned.warnings)
        return Transcript(
            turns=turns,
            tokens=tokens,
            source=source,
            warnings=tuple(warnings),
            tools=known_tools,
            given_messages=None if messages is None else tuple(messages),
        )

    def _spans(
        self, provenance: Provenance, ids: np.ndarray, text: Detokenized, slots: np.ndarray
    ) -> tuple[list[Span], Source]:
        if not len(slots):
            return [], "template" if self.dialect.openers else "mask"
        at = self._is_marker[slots].nonzero()[0]
        row = Row(text.data, dict(zip(text.starts[at].tolist(), ids[at].tolist(), strict=True)))
        segments = segment(row, self._markers)
        if not segments:
            return by_mask(provenance, text.starts, row, self._markers), "mask"
        spans = on_token_edges(segments, text.starts)
        spans = return_stop_tokens(spans, provenance, self.detokenizer.special[slots])
        skip_generation_prompt(spans, provenance, text.starts, row, self._markers)
        return split_by_provenance(spans, provenance, text.starts, row, self._markers), "template"

    def _turns(
        self,
        spans: list[Span],
        raws: list[str],
        provenance: Provenance,
        text: Detokenized,
        tools: tuple[Mapping[str, Any], ...],
    ) -> tuple[Turn, ...]:
        data, starts = text.data, text.starts
        schemas = parameters_by_tool(tools)
        bodies = [self._reader.read(span, i, data, starts, schemas) for i, span in enumerate(spans)]
        pairs = pair_results([(span.role, body) for span, body in zip(spans, bodies, strict=True)])
        tokens = [span.start for span in spans] + [len(starts) - 1]
        edges, before = starts[tokens].tolist(), provenance.before[tokens].tolist()
        return tuple(
            Turn(
                role=span.role,
                start=span.start,
                stop=span.stop,
                body_start=span.body_start,
                body_stop=span.body_stop,
                raw_bytes=data[edges[i] : edges[i + 1]],
                raw=raws[i],
                content=body.content,
                thinking=body.thinking,
                tool_calls=body.tool_calls,
                tool_call_id=call_id,
                name=name,
                n_sampled=before[i + 1] - before[i],
                versions=provenance.version_runs(span.start, span.stop, before[i + 1] - before[i]),
                warnings=(*span.warnings, *body.warnings),
            )
            for i, (span, body, (call_id, name)) in enumerate(zip(spans, bodies, pairs, strict=True))
        )

    def _warnings(self, arrays: RowArrays, source: Source) -> list[str]:
        warnings = []
        n_unknown = int(self.detokenizer.unknown(arrays.input_ids).sum())
        if n_unknown:
            warnings.append(
                f"{n_unknown} of {len(arrays.input_ids)} ids are not in the tokenizer's vocabulary"
            )
        if source == "template" and self._markers.ambiguous:
            warnings.append(
                "markers_ambiguous: the template's markers are plain text in this tokenizer; "
                "the same letters inside a message cannot be told from a marker"
            )
        if source == "mask" and self.dialect.openers and len(arrays.input_ids):
            warnings.append("no marker of the chat template was found: turns come from the mask")
        return warnings


_FINISHED = frozenset(("stop", "eos", "end_turn", "stop_sequence"))


def _end_warnings(turns: Sequence[Turn], source: Source, stop_reason: Any) -> list[str]:
    if source != "template" or str(stop_reason) not in _FINISHED or not turns:
        return []
    last = turns[-1]
    if last.role != "assistant" or not last.n_sampled or last.body_stop < last.stop:
        return []
    return [f"no_end_marker: the stop reason is {quoted(stop_reason)}, and the last answer has no end marker"]


_DIALECTS: dict[str, TemplateMarkers] = {}
_MAX_DIALECTS = 64


def _learned(
    tokenizer: Any, override: str | None, template: str | None, kwargs: Mapping[str, Any]
) -> TemplateMarkers:
    """The template's dialect, learned once per tokenizer class, named tokens and template."""
    names = [str(getattr(tokenizer, f"{name}_token", None)) for name in ("bos", "eos", "pad")]
    key = repr((type(tokenizer).__qualname__, names, template, sorted(kwargs.items(), key=repr)))
    if key not in _DIALECTS:
        if len(_DIALECTS) >= _MAX_DIALECTS:
            _DIALECTS.clear()
        _DIALECTS[key] = learn(tokenizer, override, kwargs)
    return _DIALECTS[key]


def _template_of(tokenizer: Any) -> str | None:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = "\n".join(str(text) for text in template.values())
    return template if isinstance(template, str) else None


@dataclass(frozen=True, eq=False)
class RowArrays:
    """One rollout's arrays, unpadded, n tokens each.

    Attributes:
        input_ids: int64 [n]; -1 where the value given is no integer.
        loss_mask: bool [n].
        response_mask: bool [n].
        tracks: further arrays [n]: of `INT_TRACKS` what `int_track` makes, float32 else.
        warnings: one sentence each for what had to be coerced.
    """

    input_ids: np.ndarray
    loss_mask: np.ndarray
    response_mask: np.ndarray
    tracks: Mapping[str, np.ndarray]
    warnings: tuple[str, ...] = ()


def row_arrays(
    input_ids: Any,
    *,
    loss_mask: Any = None,
    response_mask: Any = None,
    tracks: Mapping[str, Any] | None = None,
) -> RowArrays:
    """Coerces one rollout's arrays.

    Args:
        input_ids: n token ids; integral floats are taken, anything else becomes -1 and is named.
        loss_mask: n values, nonzero = contributes to the loss; NaN counts as 0 and is named.
        response_mask: n values, nonzero = sampled. When missing: `versions >= 0` where versions are
            given, else the loss mask.
        tracks: further arrays of n numbers by name.

    Raises:
        DecodeError: an array is not one-dimensional, holds no numbers, or has another length than
            `input_ids`; the text names the array and both shapes.
    """
    warnings: list[str] = []
    ids = _ids(_array("input_ids", input_ids), warnings)
    n = len(ids)
    whole = {
        name: _track(name, _array(name, value, n))
        for name, value in (tracks or {}).items()
        if value is not None
    }
    loss = None if loss_mask is None else _mask("loss_mask", _array("loss_mask", loss_mask, n), warnings)
    if response_mask is not None:
        sampled = _mask("response_mask", _array("response_mask", response_mask, n), warnings)
    elif "versions" in whole:
        sampled = whole["versions"] >= 0
    elif loss is not None:
        sampled = loss
    else:
        sampled = np.zeros(n, bool)
        if n:
            warnings.append("no mask and no versions were given: which tokens were sampled is unknown")
    return RowArrays(ids, np.zeros(n, bool) if loss is None else loss, sampled, whole, tuple(warnings))


def _array(name: str, value: Any, n: int | None = None) -> np.ndarray:
    array = np.asarray(value)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64)
    expected = "one dimension [n]" if n is None else f"shape ({n},), as input_ids has"
    if array.ndim != 1 or (n is not None and len(array) != n):
        raise DecodeError(
            f"{name}: shape {array.shape}, expected {expected}; hand over one rollout without padding"
        )
    if array.dtype.kind not in "biuf":
        raise DecodeError(f"{name}: dtype {array.dtype}, expected integers, floats or booleans")
    return array


def _ids(array: np.ndarray, warnings: list[str]) -> np.ndarray:
    if array.dtype.kind != "f":
        return array.astype(np.int64)
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < LARGEST_EXACT)
    if not whole.all():
        at = int(np.argmin(whole))
        warnings.append(
            f"input_ids: {int((~whole).sum())} of {len(array)} values are no integers "
            f"(the first is {array[at]} at position {at}); they are shown as <unknown -1>"
        )
    return np.where(whole, array, -1).astype(np.int64)


def _mask(name: str, array: np.ndarray, warnings: list[str]) -> np.ndarray:
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "f" and np.isnan(array).any():
        warnings.append(f"{name}: {int(np.isnan(array).sum())} of {len(array)} values are NaN, taken as 0")
        array = np.nan_to_num(array, nan=0.0)
    return array != 0


def _track(name: str, array: np.ndarray) -> np.ndarray:
    if name not in INT_TRACKS:
        return array.astype(np.float32)
    if array.dtype.kind == "f":
        array = np.nan_to_num(array, nan=-1.0, posinf=-1.0, neginf=-1.0)
    return int_track(array)


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
            dialect = TemplateMarkers.from_dict(dialect)
        return cls(dialect, values.get("chat_template"), values.get("chat_template_kwargs") or {})
