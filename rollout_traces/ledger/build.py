"""PackedBatch -> Ledger: every row of a hand-over, from masks and scalars, without its text.

What the trainer says of a row beside its tokens and rewards are columns too: engine, answers, extras, timings.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rollout_traces.ledger.columns import COLUMNS, NULL_INT, Ledger, any_known, kind_of, number_text
from rollout_traces.ledger.groups import group_numbers, positions_in_group
from rollout_traces.ledger.text_facts import characters_of, thinking_tokens, tool_failed
from rollout_traces.ledger.tokens import MaskedTokens, Segments, clipped, k3, ratio, update_shares
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.plain_values import INFINITE, INT64_MAX
from rollout_traces.model.spans import Span, as_seconds, checked, most_of_a_row, packed, seconds_of_scoring
from rollout_traces.model.text import words
from rollout_traces.model.transcript import Transcript
from rollout_traces.settings.run_settings import RunSettings

STOP_REASONS = {
    **dict.fromkeys(
        words("max_tokens max_new_tokens max_length max_output_tokens max_completion_tokens"), "length"
    ),
    **dict.fromkeys(words("eos eos_token end_turn stop_sequence stop_token"), "stop"),
}
"""Engines' names of one and the same stop reason; other reasons keep their name in lower case."""


FROM_TRANSCRIPTS = ("n_turns", "n_thinking", "n_tool_calls", "n_tool_errors")
"""Columns that a decoded row knows better."""


def build_ledger(batch: PackedBatch, settings: RunSettings | None = None) -> Ledger:
    """Fills every column that the hand-over allows without decoding.

    Rows whose tokens were left behind (`has_tokens` False) have unknown token columns. A column that
    is unknown throughout is left out.

    Args:
        batch: B rollouts.
        settings: what the run declares; clip bounds and the success threshold are read.

    Returns:
        B rows.
    """
    settings = settings or RunSettings()
    sampled = MaskedTokens.sampled(batch)
    in_loss = sampled if batch.loss_is_sampled else MaskedTokens.in_loss(batch)
    prompt_keys = _prompt_keys(batch)
    group = group_numbers(batch.group_ids, prompt_keys)
    sample = positions_in_group(group)
    discard_reason = text_column(batch, "discard_reasons", str)
    columns: dict[str, np.ndarray | None] = {
        "uid": texts([batch.uid(b) for b in range(batch.n_rows)]),
        "split": texts([batch.split] * batch.n_rows),
        "step": np.full(batch.n_rows, batch.step, np.int64),
        "group": group,
        "sample": sample,
        "prompt_key": prompt_keys,
        "source": given_texts(batch, "sources", str),
        "episode": given_texts(batch, "episode_ids", str),
        "parent": given_texts(batch, "parents", str),
        "sample_id": _sample_ids(batch),
        "origin": given_texts(batch, "origins", str),
        "discard_reason": discard_reason,
        "reward": batch.row_floats.get("rewards"),
        "raw_reward": batch.row_floats.get("raw_rewards"),
        "reward_status": given_texts(batch, "reward_statuses", _lower),
        "stop_reason": given_texts(batch, "stop_reasons", normalise_stop_reason),
        "success": _success(batch, settings),
        "answered": _answered(batch),
        "equal_to": equal_to(sampled, group, sample),
    }
    columns |= {f"component/{name}": values for name, values in batch.reward_components.items()}
    columns |= {f"sample/{name}": values for name, values in batch.sample_metrics.items()}
    columns |= row_value_columns(batch)
    columns |= _lengths(batch, sampled)
    columns |= _versions(batch, sampled)
    columns |= _mismatch(sampled)
    columns["trained"] = _trained(batch, in_loss, discard_reason)
    columns |= _advantages(batch, in_loss)
    columns["clip_share"] = _clip_share(in_loss, settings)
    columns["update_share"] = update_shares(in_loss, discard_reason)
    columns = _with_known(columns, batch)
    columns |= _characters(batch, columns)
    return Ledger(
        {name: column for name, column in columns.items() if column is not None and any_known(name, column)}
    )


def _sample_ids(batch: PackedBatch) -> np.ndarray | None:
    """object [B]: the sample ids of rows of an episode, None elsewhere; None where no row is of one."""
    of_episode = batch.row_lists.get("episode_ids")
    if not of_episode:
        return None
    ids = text_column(batch, "sample_ids", str)
    return texts([None if episode is None else ids[row] for row, episode in enumerate(of_episode)])


def complete_from_transcripts(ledger: Ledger, transcripts: Mapping[int, Transcript]) -> Ledger:
    """Replaces what only text can show, for the rows that were decoded.

    Args:
        ledger: B rows.

    Returns:
        The ledger with `n_turns` replaced and `n_thinking`, `n_tool_calls`, `n_tool_errors` filled for
        those rows; the last three stay unknown elsewhere.
    """
    if not transcripts:
        return ledger
    columns = {name: ledger.get(name).copy() for name in FROM_TRANSCRIPTS}
    for row, transcript in transcripts.items():
        if transcript.source != "mask":
            columns["n_turns"][row] = sum(turn.role == "assistant" for turn in transcript.turns)
            columns["n_tool_calls"][row] = sum(len(turn.tool_calls) for turn in transcript.turns)
            columns["n_tool_errors"][row] = sum(map(tool_failed, transcript.turns))
        if len(transcript.tokens):
            columns["n_thinking"][row] = thinking_tokens(transcript)
    return ledger.with_columns(
        **{name: column for name, column in columns.items() if (column != NULL_INT).any()}
    )


def normalise_stop_reason(reason: Any) -> str:
    """One name for what engines call differently: `max_tokens` is `length`, `eos` is `stop`.

    Args:
        reason: a string, or an enum whose value or name is one.

    Returns:
        The reason in lower case, with underscores between words.
    """
    name = str(getattr(reason, "value", reason)).strip().lower().replace("-", "_").replace(" ", "_")
    return STOP_REASONS.get(name, name)


def equal_to(sampled: MaskedTokens, group: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Finds, for each rollout, the first of its group that sampled the very same tokens.

    Args:
        sampled: the sampled tokens of B rows.
        group: int64 [B].
        position: int64 [B], `positions_in_group(group)`.

    Returns:
        int64 [B]: the position in the group of the first row with the same tokens, the row's own where none
        before it has them; unknown for rows without sampled tokens.
    """
    counts, starts = sampled.segments.counts, sampled.segments.starts
    first = np.where(counts > 0, position, NULL_INT)
    if not position.any():  # no group has a second row
        return first
    order = np.lexsort((position, counts, group))
    by_group, by_count = group[order], counts[order]
    alike = (by_group[1:] == by_group[:-1]) & (by_count[1:] == by_count[:-1])
    ids = sampled.batch.input_ids
    seen: dict[tuple[int, bytes], int] = {}
    for row in np.unique(np.concatenate([order[:-1][alike], order[1:][alike]])).tolist():
        if counts[row]:
            written = ids[sampled.positions[starts[row] : starts[row] + counts[row]]]
            first[row] = seen.setdefault((int(group[row]), written.tobytes()), int(position[row]))
    return first


def turn_starts(batch: PackedBatch) -> np.ndarray:
    """bool [N]: first tokens of sampled runs.

    A run begins at a row's first token, after an unsampled token, or where `turn_ids` change.
    """
    mask = batch.response_mask
    starts = mask.copy()
    starts[1:] = mask[1:] > mask[:-1]
    turn_ids = batch.tracks.get("turn_ids")
    if turn_ids is not None:
        starts[1:] |= mask[1:] & mask[:-1] & (turn_ids[1:] != turn_ids[:-1])
    edges = batch.offsets[:-1][batch.lengths > 0]
    starts[edges] = mask[edges]
    return starts


def turn_numbers(batch: PackedBatch) -> np.ndarray:
    """int64 [N]: the number of the sampled run that a token lies in or behind, from 0 in each row."""
    begun = np.cumsum(turn_starts(batch))
    before = np.concatenate([np.zeros(1, np.int64), begun])[batch.offsets[:-1]]
    return np.maximum(begun - np.repeat(before, batch.lengths) - 1, 0)


def _prompt_keys(batch: PackedBatch) -> np.ndarray:
    given = batch.row_lists.get("prompt_keys")
    keys: list[str | None] = list(batch.prompt_keys())
    if not batch.has_tokens.all():
        for row in np.flatnonzero(~batch.has_tokens).tolist():
            if given is None or given[row] is None:
                keys[row] = None
    return texts(keys)


def _lengths(batch: PackedBatch, sampled: MaskedTokens) -> dict[str, np.ndarray]:
    n_prompt = batch.prompt_stops - batch.offsets[:-1]
    n_sampled = sampled.segments.counts
    lengths = {
        "n_prompt": n_prompt,
        "n_sampled": n_sampled,
        "n_environment": batch.lengths - n_prompt - n_sampled,
        "n_turns": Segments(n_sampled).sum(turn_starts(batch)[sampled.positions]),
    }
    if batch.has_tokens.all():
        return lengths
    known = {name: np.where(batch.has_tokens, column, NULL_INT) for name, column in lengths.items()}
    for row in np.flatnonzero(~batch.has_tokens).tolist():
        if messages := _messages(batch, row):
            known["n_turns"][row] = sum(message.get("role") == "assistant" for message in messages)
    return known


def _messages(batch: PackedBatch, row: int) -> list[Mapping[str, Any]]:
    return [message for message in batch.conversation(row) or () if isinstance(message, Mapping)]


def _characters(batch: PackedBatch, columns: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    """How long the texts of rows are of which nothing says how many tokens were sampled."""
    n_sampled = columns.get("n_sampled")
    prompt, written = (np.full(batch.n_rows, NULL_INT) for _ in range(2))
    unknown = ~batch.has_tokens if n_sampled is None else n_sampled == NULL_INT
    for row in np.flatnonzero(unknown).tolist():
        if batch.row_value("ledger_rows", row) is None and (messages := _messages(batch, row)):
            prompt[row], written[row] = characters_of(messages)
    return {"prompt_characters": prompt, "written_characters": written}


def _versions(batch: PackedBatch, sampled: MaskedTokens) -> dict[str, np.ndarray]:
    versions = batch.tracks.get("versions")
    if versions is None:
        return {}
    known, values = sampled, sampled.track("versions")
    assert values is not None
    if values.min(initial=0) < 0:
        known = MaskedTokens.under(batch, batch.response_mask & (versions >= 0))
        values = versions[known.positions]
    low = known.segments.min(values, NULL_INT)
    columns = {"version_min": low, "version_max": known.segments.max(values, NULL_INT)}
    if batch.train_version is not None:
        columns["staleness_max"] = np.where(low == NULL_INT, NULL_INT, int(batch.train_version) - low)
    return columns


def _mismatch(sampled: MaskedTokens) -> dict[str, np.ndarray]:
    columns = {}
    logprobs = sampled.track("logprobs")
    if logprobs is not None:
        columns["mean_logprob"] = sampled.segments.mean(logprobs)
    d = sampled.log_ratio
    if d is None:
        return columns
    known = np.isfinite(d)
    counts = sampled.segments.sum(known)
    d = np.where(known, d, 0)
    total = sampled.segments.sum(d)
    empty = counts == 0
    columns |= {
        "mismatch_k1": -ratio(total, counts),
        "mismatch_k3": ratio(sampled.segments.sum(k3(d)), counts),
        "mismatch_abs_max": np.where(empty, np.nan, sampled.segments.max(np.abs(d), np.nan)),
        "log_ratio_sum": np.where(empty, np.nan, total),
    }
    return columns


def _trained(batch: PackedBatch, in_loss: MaskedTokens, discard_reason: np.ndarray) -> np.ndarray:
    kept = np.asarray([reason is None for reason in discard_reason.tolist()], bool)
    trained = (kept & (in_loss.segments.counts > 0)).astype(np.int64)
    return np.where(batch.has_tokens | ~kept, trained, NULL_INT)


def _advantages(batch: PackedBatch, in_loss: MaskedTokens) -> dict[str, np.ndarray | None]:
    given = batch.row_floats.get("advantages")
    values = in_loss.track("advantages")
    if values is None:
        return {"advantage": given}
    per_row = np.full(batch.n_rows, np.nan) if given is None else given
    means = in_loss.segments.mean(values)
    sizes = np.abs(values, dtype=np.float64)
    largest = in_loss.segments.max(np.where(np.isfinite(sizes), sizes, -1), -1)
    return {
        "advantage": np.where(np.isnan(means), per_row, means),
        "advantage_abs_max": np.where(largest < 0, np.nan, largest),
    }


def _clip_share(in_loss: MaskedTokens, settings: RunSettings) -> np.ndarray | None:
    cut = clipped(in_loss, settings)
    if cut is None:
        return None
    return ratio(in_loss.segments.sum(cut.low | cut.high), in_loss.segments.sum(cut.known))


def _success(batch: PackedBatch, settings: RunSettings) -> np.ndarray | None:
    """1 or 0 as the trainer says; for rows that came without `successes`, by the declared threshold."""
    given = batch.row_lists.get("successes")
    if not given and (settings.success_threshold is None or "rewards" not in batch.row_floats):
        return None
    values = given or [None] * batch.n_rows
    known = np.asarray([value is not None and value == value for value in values], bool)
    success = np.where(known, [int(bool(value)) for value in values], NULL_INT).astype(np.int64)
    rewards = batch.row_floats.get("rewards")
    if settings.success_threshold is None or rewards is None:
        return success
    lacking = batch.lacks("row_lists", "successes")
    failed = [status not in (None, "ok") for status in text_column(batch, "reward_statuses", _lower)]
    decided = lacking & np.isfinite(rewards) & ~np.asarray(failed, bool)
    return np.where(decided, rewards >= settings.success_threshold, success).astype(np.int64)


def _answered(batch: PackedBatch) -> np.ndarray | None:
    """1 where an answer was parsed, 0 where none was; unknown for rows that came without `parsed_answers`."""
    values = batch.row_lists.get("parsed_answers")
    if values is None:
        return None
    answered = np.asarray([int(value is not None) for value in values], np.int64)
    return np.where(batch.lacks("row_lists", "parsed_answers"), NULL_INT, answered)


def _lower(value: Any) -> str:
    return str(value).strip().lower()


_IDENTITY = frozenset(("uid", "split", "step", "group", "sample", "trace_uid", "selected_probability"))
"""Columns that the run itself gives a row."""


def _with_known(columns: Mapping[str, np.ndarray | None], batch: PackedBatch) -> dict[str, np.ndarray | None]:
    """The columns, where a number of `known_columns` is in every place that nothing else fills."""
    given = batch.row_lists.get("known_columns")
    found = dict(columns)
    if given is None:
        return found
    known = [values if isinstance(values, Mapping) else {} for values in given]
    numeric = {column.name for column in COLUMNS if column.kind in ("float", "int")} - _IDENTITY
    for name in sorted({name for values in known for name in values} & numeric):
        kind = kind_of(name)
        unknown = NULL_INT if kind == "int" else np.nan
        present = found.get(name)
        column = np.full(batch.n_rows, unknown) if present is None else present.copy()
        missing = column == NULL_INT if kind == "int" else np.isnan(column)
        for row in np.flatnonzero(missing).tolist():
            value = known[row].get(name)
            if isinstance(value, (int, float)) and np.isfinite(value):
                column[row] = value
        found[name] = column
    return found


SHORT = 200
"""Characters of a text that a column keeps; the trace of a row holds it whole."""
OF_A_TURN = re.compile(r"(turn|tool)/\d+")
"""Timings of single turns, which stay in the traces."""
MAX_NAMES = 32
"""Names of extras, and of timings, that get a column in a step; further ones stay in the traces."""


def row_value_columns(batch: PackedBatch) -> dict[str, np.ndarray | None]:
    """The columns `engine`, `answer`, `ground_truth`, `extra/<name>`, `timing/<name>` and `timings`.

    An extra is a column of numbers where all of its values in the step are numbers (whole ones that no float holds
    are kept as int64), else of texts, in which a number is written as `number_text` writes it.

    Args:
        batch: B rollouts.

    Returns:
        Name -> float64 [B], int64 [B], or object [B] of str or None; None for one that no row was given.
    """
    columns: dict[str, np.ndarray | None] = {
        "engine": given_texts(batch, "engine_ids", str),
        "answer": given_texts(batch, "parsed_answers", short_text),
        "ground_truth": given_texts(batch, "ground_truths", short_text),
    }
    extras = _by_name(batch.row_lists.get("extras") or ())
    columns |= {f"extra/{name}": _mixed(values) for name, values in extras.items()}
    return columns | _timings(batch)


def _timings(batch: PackedBatch) -> dict[str, np.ndarray | None]:
    """The columns `timing/<name>` in seconds, those of spans too, and `timings`, the spans."""
    given = batch.row_lists.get("timings") or ()
    spans: list[list[Span]] = [checked(row)[0] if isinstance(row, list) else [] for row in given]
    seconds = [
        row if isinstance(row, Mapping) else as_seconds(of) for row, of in zip(given, spans, strict=True)
    ]
    columns: dict[str, np.ndarray | None] = {
        f"timing/{name}": _numbers(values) for name, values in _by_name(seconds, OF_A_TURN).items()
    }
    if any(spans):
        scoring = [
            {f"score/{name}": value for name, value in row.items() if name}
            for row in seconds_of_scoring(spans)
        ]
        columns |= {f"timing/{name}": _numbers(values) for name, values in _by_name(scoring).items()}
        most = most_of_a_row(batch.n_rows)
        columns["timings"] = texts([packed(row, most) for row in spans])
    return columns


def given_texts(batch: PackedBatch, key: str, read: Callable[[Any], str]) -> np.ndarray | None:
    """As `text_column`; None where no row was given one."""
    return text_column(batch, key, read) if batch.row_lists.get(key) else None


def text_column(batch: PackedBatch, key: str, read: Callable[[Any], str]) -> np.ndarray:
    """object [B]: the values of a row list as texts, None where unknown."""
    values = batch.row_lists.get(key) or [None] * batch.n_rows
    return texts([None if value is None else read(value) for value in values])


def texts(values: Sequence[str | None]) -> np.ndarray:
    """object [B] of str or None."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def short_text(value: Any) -> str:
    """A value as a text of at most `SHORT` characters, with an ellipsis where it was cut."""
    text = str(value)
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"


def _by_name(given: Sequence[Any], left_out: re.Pattern[str] | None = None) -> dict[str, list[Any]]:
    """Name -> its B values, None in rows without it; names that match `left_out` have none."""
    rows = [
        {str(name): value for name, value in row.items()} if isinstance(row, Mapping) else {} for row in given
    ]
    found = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in found if left_out is None or not left_out.fullmatch(name)][:MAX_NAMES]
    return {name: [row.get(name) for row in rows] for name in names}


def _numbers(values: Sequence[Any]) -> np.ndarray:
    return np.asarray([float(value) if _is_number(value) else math.nan for value in values], np.float64)


def _mixed(values: Sequence[Any]) -> np.ndarray:
    values = [INFINITE.get(value, value) if isinstance(value, str) else value for value in values]
    given = [value for value in values if value is not None]
    if all(map(_is_number, given)):
        return _whole(values) if any(map(_needs_int, given)) and all(map(_fits, given)) else _numbers(values)
    return texts([None if value is None else _as_text(value) for value in values])


def _as_text(value: Any) -> str | None:
    if isinstance(value, float) and math.isnan(value):
        return None
    return number_text(value) if _is_number(value) else short_text(value)


def _whole(values: Sequence[int | None]) -> np.ndarray:
    return np.asarray([NULL_INT if value is None else value for value in values], np.int64)


def _needs_int(value: float) -> bool:
    """Tells whether a number is a whole one that a float does not hold."""
    return isinstance(value, int) and int(float(value)) != value


def _fits(value: float) -> bool:
    """Tells whether a number is a whole one of 64 bits."""
    return isinstance(value, int) and NULL_INT < value <= INT64_MAX


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)
