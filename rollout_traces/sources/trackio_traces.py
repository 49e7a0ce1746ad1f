"""Traces that trainers write to Trackio by themselves: whose a trace is, the rollout that it shows, all of a project.

`rollout_of` and `writer_of` are pure functions of a trace's key, messages and metadata. Sorting a trace out is by its key and by fields that no
other writer has; what is missing stays unknown. Such a project holds what its trainer chose to keep: how many
rollouts there were is not known.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_traces.decode.messages import transcript_of_messages
from rollout_traces.errors import ConfigError
from rollout_traces.ledger.text_facts import characters_of, tool_failed
from rollout_traces.model.names import file_stem
from rollout_traces.model.text import words
from rollout_traces.model.transcript import THINKING_UNCLOSED
from rollout_traces.sources.base import EVAL, TRAIN, read_only
from rollout_traces.sources.chat import Record, messages_of
from rollout_traces.sources.formats.trl_parquet import TableReader
from rollout_traces.sources.lines import loads
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow, mapping_of, number, numbers

Metadata = Record


@dataclass(frozen=True)
class TraceWriter:
    """A trainer that writes traces of its own.

    Attributes:
        name: the trainer.
        claims: whether a trace of this key and metadata is its own.
        row: the rollout of a trace, from step, messages and metadata; None where it shows something else.
    """

    name: str
    claims: Callable[[str, Metadata], bool]
    row: Callable[[int, list[dict[str, Any]], Metadata], RolloutRow | None]


def writer_of(key: str, metadata: Metadata) -> TraceWriter | None:
    """Whose trace it is; None for ours and for those of tools that are not known.

    Args:
        key: the key it was logged under.
    """
    if metadata.get("kind") in ("rollout", "digest") and "schema" in metadata:
        return None
    return next((writer for writer in WRITERS if writer.claims(key, metadata)), None)


def rollout_of(key: str, step: int, messages: Sequence[Record], metadata: Metadata) -> RolloutRow | None:
    """The rollout that a trace of another tool shows.

    Args:
        key: the key it was logged under.
        step: the step it was logged at.

    Returns:
        The rollout; None where its writer is not known or it is no rollout (a single call of an engine).
    """
    writer = writer_of(key, metadata)
    if writer is None:
        return None
    row = writer.row(step, messages_of(messages) or [], metadata)
    folder = key.split("/")[0]
    if row is not None and (folder == "val" or "eval" in folder):
        row.split = EVAL
    return row


_OF_THE_LEDGER = words(
    "split step reward raw_reward advantage group source stop_reason reward_status discard_reason episode parent "
    "ground_truth"
)
"""Names that a rollout and the ledger share."""


def fields_of(row: RolloutRow) -> dict[str, Any]:
    """Gives what is known of a rollout under the names of the ledger, with what its text alone shows.

    Returns:
        Name -> value, unknown ones left out; `flags` is a list of names.
    """
    known: dict[str, Any] = {
        **{name: getattr(row, name) for name in _OF_THE_LEDGER},
        "prompt_key": row.key_of_prompt(),
        "sample_id": None if row.episode is None or row.sample_id is None else str(row.sample_id),
        "success": None if row.success is None else int(row.success),
        **{f"component/{name}": value for name, value in row.components.items()},
        **{f"sample/{name}": value for name, value in row.metrics.items()},
        **row.known_columns,
        **text_facts(row.conversation() or ()),
    }
    if row.input_ids is not None and row.response_mask is not None:
        sampled = [at for at, value in enumerate(row.response_mask) if value]
        known |= {
            "n_tokens": len(row.response_mask),
            "n_sampled": len(sampled),
            "n_prompt": sampled[0] if sampled else len(row.response_mask),
            "mean_logprob": _mean_sampled(row),
        }
    if "n_sampled" in known:  # the length is known in tokens
        del known["prompt_characters"], known["written_characters"]
    if row.train_version is not None:
        known["version_max"] = row.train_version
    whole = {
        name: int(value)
        for name, value in known.items()
        if name.startswith("n_") and isinstance(value, float) and value.is_integer()
    }
    return {name: value for name, value in (known | whole).items() if value is not None}


def text_facts(messages: Sequence[Record]) -> dict[str, Any]:
    """Turns, tool calls and errors, and the flags that text alone allows.

    Args:
        messages: a conversation.
    """
    turns = transcript_of_messages(messages).turns
    written = [turn for turn in turns if turn.role == "assistant"]
    calls = [call for turn in written for call in turn.tool_calls]
    n_errors = sum(map(tool_failed, turns))
    unclosed = any(w.startswith(THINKING_UNCLOSED) for turn in written for w in turn.warnings)
    found = {
        "tool_error": n_errors > 0,
        "tool_call_unparsed": any(not call.parsed for call in calls),
        "thinking_unclosed": unclosed,
        "empty_completion": not unclosed and any(not t.content.strip() and not t.tool_calls for t in written),
    }
    prompt, characters = characters_of(messages)
    return {
        "prompt_characters": prompt,
        "written_characters": characters,
        "n_turns": len(written),
        "n_tool_calls": len(calls),
        "n_tool_errors": n_errors,
        "flags": [name for name, fires in found.items() if fires],
    }


def _mean_sampled(row: RolloutRow) -> float | None:
    pairs = zip(row.response_mask or (), row.tracks.get("logprobs") or (), strict=False)
    known = [value for sampled, value in pairs if sampled and isinstance(value, (int, float))]
    return sum(known) / len(known) if known else None


def _row(step: int, messages: list[dict[str, Any]], **known: Any) -> RolloutRow:
    return RolloutRow(step=step, messages=messages or None, **known)


def _trl_table(step: int, messages: list[dict[str, Any]], m: Metadata) -> RolloutRow:
    """A row of TRL's `completions` table, as `trl_parquet.row_metadata` describes it."""
    return _row(
        step,
        messages,
        split=m.get("split", TRAIN),
        n_prompt_messages=_int(m.get("prompt_messages")),
        reward=number(m.get("reward")),
        components=_below(m, "rewards/"),
        metrics=_below(m, "metrics/"),
        advantage=number(m.get("advantage")),
        group=m.get("group_id"),
    )


def _below(metadata: Metadata, prefix: str) -> dict[str, Any]:
    """Numbers whose name begins with a prefix, or that lie in a mapping of that name."""
    flat = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    return numbers(flat) | numbers(metadata.get(prefix.rstrip("/")))


def _int(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _trl(step: int, messages: list[dict[str, Any]], m: Metadata) -> RolloutRow:
    version = _int(m.get("model_version"))
    return _row(
        step,
        messages,
        reward=number(m.get("reward")),
        components=_below(m, "rewards/"),
        metrics=_below(m, "tools/"),
        known_columns=numbers({"n_prompt": m.get("prompt_tokens"), "n_sampled": m.get("completion_tokens")}),
        advantage=number(m.get("advantage")),
        group=m.get("group_id"),
        train_version=version,
    )


def _verl(step: int, messages: list[dict[str, Any]], m: Metadata) -> RolloutRow | None:
    output = m.get("output")
    if not isinstance(output, Mapping) or not isinstance(output.get("response_ids"), list):
        return None
    prompt, response = list(output.get("prompt_ids") or ()), output["response_ids"]
    mask = output.get("response_mask")
    mask = mask if isinstance(mask, list) and len(mask) == len(response) else [1] * len(response)
    logprobs = output.get("response_logprobs")
    inputs = mapping_of(m.get("inputs"))
    given = inputs.get("kwargs")
    asked = messages_of((given if isinstance(given, Mapping) else inputs).get("raw_prompt")) or []
    reply = output.get("response_text")
    at = _int(m.get("step"))
    row = _row(
        step if at is None else at,
        [*asked, *([{"role": "assistant", "content": reply}] if isinstance(reply, str) else [])],
        split=EVAL if m.get("validate") else TRAIN,
        reward=number(output.get("reward_score")),
        group=m.get("sample_index"),
        sample_id=f"{m.get('sample_index')}-{m.get('rollout_n')}",
        reward_status="error" if m.get("status") == "error" else None,
    )
    row.n_prompt_messages = len(asked)
    row.input_ids = [*prompt, *response]
    row.response_mask = row.loss_mask = [*[0] * len(prompt), *mask]
    if isinstance(logprobs, list) and len(logprobs) == len(response):
        row.tracks["logprobs"] = [*[None] * len(prompt), *logprobs]
    return row


def _scored(group: str | None = None, reward: str = "reward", **names: str) -> Callable[..., RolloutRow]:
    """A reader for writers whose metadata are single values.

    Args:
        group: the field that rows of one prompt share.
        reward: the field of the reward.
        **names: field of a `RolloutRow` -> theirs.
    """

    def read(step: int, messages: list[dict[str, Any]], m: Metadata) -> RolloutRow:
        value = m.get(reward)
        score = (
            float(sum(v for v in value if isinstance(v, (int, float))))
            if isinstance(value, list)
            else number(value)
        )
        said = {ours: m.get(theirs) for ours, theirs in names.items()}
        at = _int(said.pop("step", None))
        taken = {reward, "reward", group, *names.values()}
        rest = {k: v for k, v in m.items() if k not in taken and not isinstance(v, bool)}
        return _row(
            step if at is None else at,
            messages,
            reward=score,
            group=m.get(group) if group else None,
            metrics=numbers(rest),
            **said,
        )

    return read


def _tunix(step: int, messages: list[dict[str, Any]], m: Metadata) -> RolloutRow:
    index, size = _int(m.get("sample_index")), _int(m.get("num_generations"))
    row = _scored(sample_id="sample_index", step="step", advantage="advantages")(step, messages, m)
    row.advantage = number(m.get("advantages"))
    row.group = index // size if index is not None and size else None
    row.split = EVAL if str(m.get("mode")).startswith("eval") else TRAIN
    return row


def _inspect(step: int, messages: list[dict[str, Any]], m: Metadata) -> RolloutRow:
    scores = _below(m, "score/")
    return _row(
        step,
        messages,
        split=EVAL,
        reward=next(iter(scores.values()), None),
        components=scores,
        group=f"sample {m.get('sample_id')}",
        sample_id=f"{m.get('sample_id')}-{m.get('epoch')}",
        ground_truth=m.get("target"),
    )


def _at(end: str, *fields: str) -> Callable[[str, Metadata], bool]:
    return lambda key, metadata: key.endswith(end) and all(field in metadata for field in fields)


WRITERS: tuple[TraceWriter, ...] = (
    TraceWriter("TRL", lambda key, m: key == "completions" and "table_row" in m, _trl_table),
    TraceWriter("TRL", _at("rollouts", "group_id", "reward", "model_version"), _trl),
    TraceWriter("verl", lambda key, m: key.startswith("rollout_trace/") and "op" in m, _verl),
    TraceWriter(
        "verl",
        _at("val/generations", "score"),
        _scored(reward="score", source="source", sample_id="sample_index"),
    ),
    TraceWriter(
        "AReaL",
        _at("trajectories", "trajectory_index", "seqlen"),
        _scored(
            "trajectory_index", sample_id="sample_index", train_version="tail_version", step="global_step"
        ),
    ),
    TraceWriter(
        "slime",
        _at("trajectories", "rollout_id", "group_index"),
        _scored("group_index", stop_reason="status", sample_id="sample_index"),
    ),
    TraceWriter(
        "ROLL",
        _at("rollout/rlvr", "prompt_id"),
        _scored("prompt_id", "scores", source="domain", sample_id="sample_uuid"),
    ),
    TraceWriter(
        "ROLL",
        _at("agentic_rollouts", "traj_group_id"),
        _scored("traj_group_id", "episode_scores", episode="traj_id", sample_id="traj_id"),
    ),
    TraceWriter(
        "open-instruct",
        _at("train/rollouts", "prompt_idx"),
        _scored(
            "prompt_idx",
            stop_reason="finish_reason",
            source="dataset",
            sample_id="sample_idx",
            train_version="model_step",
        ),
    ),
    TraceWriter(
        "SkyRL",
        _at("rollout/traces", "instance_id"),
        _scored("instance_id", stop_reason="stop_reason", sample_id="trajectory_id", step="step"),
    ),
    TraceWriter("Tunix", _at("rollout/traces", "num_generations"), _tunix),
    TraceWriter(
        "Tunix",
        _at("agentic/trajectories", "trajectory_reward"),
        _scored(
            None,
            "trajectory_reward",
            stop_reason="status",
            sample_id="trajectory_index",
            train_version="policy_version",
        ),
    ),
    TraceWriter("Inspect", _at("", "sample_id", "epoch", "eval_id"), _inspect),
)
"""Trainers and what they write, as found in their sources; the first that claims a trace has it."""


PREFIX = "trackio:"


def project_path(folder: Path, project: str) -> Path:
    """The database of a project.

    Raises:
        ConfigError: there is no such project.
    """
    path = folder / f"{file_stem(project)}.db"
    if not path.is_file():
        raise ConfigError(f"{PREFIX}{project}: no such project in {folder}.")
    return path


def rows_of_project(path: Path, problems: Problems) -> Iterator[tuple[RolloutRow, str, int]]:
    """The rollouts of a project that others wrote, run by run and step by step.

    Args:
        path: its database, which is only read.
        problems: where traces that cannot be read, or that show no rollout, are noted.

    Yields:
        Each rollout with the name of its run, the table that it lies in, and its number there.
    """
    try:
        with read_only(path) as connection:
            tables = {
                name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if "traces" in tables:
                yield from _traces(connection, path, problems)
            if "metrics" in tables:
                yield from _tables(connection, path, problems)
    except sqlite3.Error as error:
        problems.add(path, "unreadable_files", f"cannot be read ({error}).")


def _traces(
    connection: sqlite3.Connection, path: Path, problems: Problems
) -> Iterator[tuple[RolloutRow, str, int]]:
    own = others = 0
    for rowid, name, step, key, messages, metadata in connection.execute(
        "SELECT rowid, run_name, step, key, messages, metadata FROM traces ORDER BY run_name, step, rowid"
    ):
        try:
            fields = _json(metadata, dict)
            row = rollout_of(key, int(step or 0), _json(messages, list), fields)
        except (ValueError, TypeError, KeyError) as error:
            problems.add(path, "rows_refused", f"a trace of {name} cannot be understood ({error!r}).", rowid)
            continue
        if row is None:
            is_own = "schema" in fields and fields.get("kind") in ("rollout", "digest")
            own, others = own + is_own, others + (not is_own)
            continue
        row.run = name
        yield row, "traces", rowid
    if own:
        text = f"{own} traces were logged by rollout-traces, which reads them here: rollout-traces show -p {path.stem}"
        problems.add(path, "own_traces", text)
    if others:
        text = f"{others} traces show no rollout of a trainer that is known; they are passed over."
        problems.add(path, "traces_of_others", text)


def _tables(
    connection: sqlite3.Connection, path: Path, problems: Problems
) -> Iterator[tuple[RolloutRow, str, int]]:
    reader = TableReader(lambda sql, values: connection.execute(sql, values).fetchall())
    [(last,)] = connection.execute("SELECT coalesce(max(id), 0) FROM metrics")
    repeated = 0
    for at, _ in sorted(reader.numbers(0, last), key=lambda found: _run_first(connection, found[0])):
        table = reader.table(at)
        if table is None:
            continue
        repeated += table.first
        for row in table.rollouts():
            yield row, "metrics", at
    if repeated:
        text = f"{repeated} rows of tables repeat those of the table before; they are passed over."
        problems.add(path, "repeated_rows", text)


def _run_first(connection: sqlite3.Connection, number: int) -> tuple[str, int]:
    """Sorts tables by their run: each run of a copy has a logger, one after the other."""
    [(name,)] = connection.execute("SELECT run_name FROM metrics WHERE id = ?", (number,))
    return str(name), number


def _json(raw: Any, kind: type) -> Any:
    value = loads(raw if isinstance(raw, bytes) else str(raw or "null").encode())
    return value if isinstance(value, kind) else kind()
