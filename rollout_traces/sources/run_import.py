"""Reads the files of one run, gives rows that came as text their token ids, and hands all to the run's logger step by step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollout_traces.decode.decoder import TranscriptDecoder
from rollout_traces.logger.attempts import attempts_of
from rollout_traces.logger.rollout_logger import RolloutLogger
from rollout_traces.model.plain_values import parsed_call
from rollout_traces.model.text import IDENTITY_BYTES, short_hash
from rollout_traces.model.units import KB, MB, MINUTE
from rollout_traces.sources.base import FileReading, Found, Record
from rollout_traces.sources.lines import PACKED, opened
from rollout_traces.sources.problems import NOT_UNDERSTOOD, Problems
from rollout_traces.sources.rows import RE_ENCODED, RolloutRow, batch_of, identity_of
from rollout_traces.sources.state import FileState, ImportState

MAX_WAITING = 48
"""Hand-overs that may wait on disk before reading goes on."""
_TAIL = 4 * KB
"""Bytes before the end of what was read that tell whether a file was written anew."""


Key = tuple[int, str]
"""A step and a split."""
MAX_ROWS = 512
MAX_TOKENS = 4_000_000
MAX_CHARACTERS = 32 * MB


@dataclass
class _WaitingRows:
    rows: list[RolloutRow] = field(default_factory=list)
    n_tokens: int = 0
    n_characters: int = 0

    def add(self, row: RolloutRow) -> None:
        self.rows.append(row)
        self.n_tokens += 0 if row.input_ids is None else len(row.input_ids)
        texts = [row.prompt_text, row.reply_text, *(m.get("content") for m in row.messages or ())]
        self.n_characters += sum(len(text) for text in texts if isinstance(text, str))

    @property
    def is_full(self) -> bool:
        return (
            len(self.rows) >= MAX_ROWS or self.n_tokens >= MAX_TOKENS or self.n_characters >= MAX_CHARACTERS
        )


class StepQueue:
    """Holds the rows of open steps until they make a hand-over; a later step closes the ones before it.

    Args:
        hand_over: takes rows of one step and split.
        close: called when a step and split has had its last row.

    Attributes:
        late: rows of steps that were closed before.
    """

    def __init__(
        self, hand_over: Callable[[Key, list[RolloutRow]], None], close: Callable[[Key], None]
    ) -> None:
        self._hand_over = hand_over
        self._close = close
        self._open: dict[Key, _WaitingRows] = {}
        self._closed_to: dict[str, int] = {}
        self.late = 0

    @property
    def open_keys(self) -> frozenset[Key]:
        """Steps and splits that more rows may come for."""
        return frozenset(self._open)

    def add(self, row: RolloutRow, behind: int = 0) -> None:
        """Takes a row; steps before its own are closed, but for so many that rows may still come for."""
        for key in sorted(key for key in self._open if key[0] < row.step - behind):
            self.close(key)
        if row.step <= self._closed_to.get(row.split, row.step - 1):
            self.late += 1
        waiting = self._open.setdefault((row.step, row.split), _WaitingRows())
        waiting.add(row)
        if waiting.is_full:
            self._send((row.step, row.split))

    def close(self, key: Key) -> None:
        """Hands over what waits of a step and closes it."""
        self._send(key)
        del self._open[key]
        self._closed_to[key[1]] = max(key[0], self._closed_to.get(key[1], key[0]))
        self._close(key)

    def send_all(self) -> None:
        """Hands over what waits; nothing is closed."""
        for key in list(self._open):
            self._send(key)

    def close_all(self) -> None:
        """Closes every open step, the oldest first."""
        for key in sorted(self._open):
            self.close(key)

    def _send(self, key: Key) -> None:
        waiting = self._open[key]
        if waiting.rows:
            self._open[key] = _WaitingRows()
            self._hand_over(key, waiting.rows)


_CHECKED = 64
"""Rows whose ids are looked up in the tokenizer's vocabulary."""


class ReEncoder:
    """Gives rows of text the ids that a tokenizer and its chat template make of them.

    The ids may differ from those that were trained on: text does not say how it was cut into tokens, nor
    which tokens of it were in the loss. So what the policy wrote counts as sampled and as trained.

    Args:
        tokenizer: a transformers tokenizer.

    Attributes:
        counts: rows `re_encoded`, and `rendering_failed` where the template refused a conversation.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.counts: Counter[str] = Counter()
        self._decoder = TranscriptDecoder(tokenizer)
        self._n_ids = self._n_unknown = self._n_checked = 0

    def add_ids(self, row: RolloutRow) -> None:
        """Gives a row ids and masks where it has none; looks whether the ids of others fit the tokenizer."""
        if row.input_ids is not None:
            self._check(row.input_ids)
            return
        marked = row.prompt_text is not None and row.messages is None and self._is_marked(row.prompt_text)
        messages = row.conversation()
        if marked:
            ids = self._encode((row.prompt_text or "") + (row.reply_text or ""))
            n_prompt = len(self._encode(row.prompt_text or ""))
        elif messages:
            rendered = self._render(messages, row.tools)
            if rendered is None:
                return
            ids, n_prompt = rendered, 0
        else:
            return
        sampled = self._written_by_policy(ids, messages or [], row, n_prompt)
        row.input_ids, row.response_mask, row.loss_mask = ids, sampled, sampled
        row.extras = {**row.extras, "ids_from": RE_ENCODED}
        self.counts["re_encoded"] += 1

    def unknown_share(self) -> float:
        """Share of the dump's own ids that the tokenizer does not know, over the rows looked at."""
        return self._n_unknown / self._n_ids if self._n_ids else 0.0

    def _check(self, ids: Sequence[int]) -> None:
        if self._n_checked < _CHECKED:
            self._n_checked += 1
            self._n_ids += len(ids)
            self._n_unknown += int(self._decoder.detokenizer.unknown(np.asarray(ids, np.int64)).sum())

    def _is_marked(self, text: str) -> bool:
        specials = getattr(self.tokenizer, "all_special_tokens", ()) or ()
        return any(token in text for token in specials)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _render(self, messages: Sequence[Record], tools: Any) -> list[int] | None:
        if not getattr(self.tokenizer, "chat_template", None):
            return self._encode("".join(str(message.get("content") or "") for message in messages))
        try:
            text = self.tokenizer.apply_chat_template(
                [_with_parsed_arguments(m) for m in messages], tools=tools or None, tokenize=False
            )
        except Exception:  # noqa: BLE001  a template raises what it likes; the row stays without ids, counted
            self.counts["rendering_failed"] += 1
            return None
        return self._encode(text)

    def _written_by_policy(
        self, ids: Sequence[int], messages: Sequence[Record], row: RolloutRow, n_prompt: int
    ) -> list[int]:
        """1 for the tokens of assistant turns after the prompt, end markers included."""
        n = row.n_prompt_messages or 0
        before = sum(message.get("role") == "assistant" for message in messages[:n])
        turns = [t for t in self._decoder.decode(ids).turns if t.role == "assistant"]
        sampled = [0] * len(ids)
        if not turns and n_prompt:
            return [0] * n_prompt + [1] * (len(ids) - n_prompt)
        for turn in turns[before:]:
            start = max(turn.body_start, n_prompt)
            stop = min(turn.stop, turn.body_stop + 1)
            for at in range(start, stop):
                sampled[at] = 1
        return sampled


def _with_parsed_arguments(message: Record) -> dict[str, Any]:
    """Templates expect a call's arguments as a mapping, not as JSON text."""
    calls = [parsed_call(call, "text") for call in message.get("tool_calls") or ()]
    return {**message, **({"tool_calls": calls} if calls else {})}


@dataclass
class ImportedRun:
    """One run's part of the report of an import.

    Attributes:
        name: its name in Trackio.
        origin: where its rollouts came from.
        formats: files of each format, by title.
        lacks: what its files do not have.
        files: files read.
        files_known: files passed over because they were imported before.
        rows: rollouts imported.
        rows_known: rollouts passed over because they were imported before.
        rows_without_tokens: those without token ids.
        rows_not_decoded: those whose token ids are not stored, since no tokenizer was given.
        rows_re_encoded: those whose ids were made from their text.
        steps: steps and splits closed.
        stored: whether all of it was stored; else it waits on disk, and `rollout-traces recover` stores it.
    """

    name: str
    origin: str
    formats: dict[str, int] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    files: int = 0
    files_known: int = 0
    rows: int = 0
    rows_known: int = 0
    rows_without_tokens: int = 0
    rows_not_decoded: int = 0
    rows_re_encoded: int = 0
    steps: int = 0
    stored: bool = True


class RunImport:
    """Takes a run's rows in their order.

    Args:
        logger: where they go.
        encoder: gives rows of text their ids; None: they stay without.
        outcome: counts.
        problems: where rows that make no batch are noted.
    """

    def __init__(
        self, logger: RolloutLogger, encoder: ReEncoder | None, outcome: ImportedRun, problems: Problems
    ) -> None:
        self.logger = logger
        self._encoder = encoder
        self._outcome = outcome
        self._problems = problems
        self._is_known_to_trackio = False
        self._attempt = 1
        self.queue = StepQueue(self._hand_over, self._close)

    def add(self, row: RolloutRow, behind: int = 0) -> None:
        """Takes a row; steps more than `behind` before its own are closed."""
        if row.attempt != self._attempt:
            self.queue.close_all()
            attempts_of(self.logger.run.id).go_on(row.attempt)
            self.queue = StepQueue(self._hand_over, self._close)
            self._attempt = row.attempt
        if self._encoder is not None:
            self._encoder.add_ids(row)
        self._outcome.rows += 1
        self._outcome.rows_without_tokens += row.input_ids is None
        self.queue.add(row, behind)

    def add_batch(self, step: int, split: str, batch: Any) -> None:
        """Takes a batch that a program made."""
        self._wait_for_room()
        self.logger.log_rollouts(batch, step, split)
        self._outcome.rows += batch.n_rows

    def _hand_over(self, key: Key, rows: list[RolloutRow]) -> None:
        try:
            batch = batch_of(rows, decodes_tokens=self._encoder is not None)
        except NOT_UNDERSTOOD as error:
            if len(rows) > 1:
                self._hand_over(key, rows[: len(rows) // 2])
                self._hand_over(key, rows[len(rows) // 2 :])
            else:
                self._outcome.rows -= 1
                self._outcome.rows_without_tokens -= rows[0].input_ids is None
                text = f"cannot be understood ({error!r}); it is passed over."
                self._problems.add(Path(str(rows[0].origin)), "rows_refused", text)
            return
        self._wait_for_room()
        self.logger.log_rollouts(batch, *key)

    def _close(self, key: Key) -> None:
        self.logger.close_step(*key)
        self._outcome.steps += 1
        if not self._is_known_to_trackio:  # until then a second import would begin another run of this name
            self._is_known_to_trackio = self.logger.flush(MINUTE)

    def _wait_for_room(self) -> None:
        while self.logger.counters["spooled"] > MAX_WAITING:
            time.sleep(0.05)


@dataclass(eq=False)
class FileImport:
    """Reads a run's files into its rows, each rollout once, and remembers how far each file was read.

    Args:
        import_of: what takes the rows of a run, by its name.
        name: the run's name, for files that hold no other.
        state: what was imported before.
        problems: where everything that cannot be read is noted.
        trust_pickle: load files that can run code when they are loaded.
        progress: called with how many bytes of the files are done.

    Attributes:
        known: rollouts passed over because they were imported before.
        names: the runs that rows were of, in their order.
    """

    import_of: Callable[[str], RunImport]
    name: str
    state: ImportState
    problems: Problems
    trust_pickle: bool
    progress: Callable[[int], None]
    known: int = 0
    names: dict[str, None] = field(default_factory=dict)
    _current: tuple[str, RunImport] | None = None
    _said_late: bool = False

    def read(self, files: Sequence[Found]) -> tuple[int, int]:
        """Reads what is new.

        Args:
            files: the run's files, in order.

        Returns:
            Files read, and files passed over because all of them was imported before.
        """
        done = n_read = 0
        for found in files:
            before = self.state.file(found.path)
            if before is None or (before.size, before.mtime_ns) != (found.size, found.mtime_ns):
                n_read += 1
                self._read_file(found, before, done)
            done += found.size
            self.progress(done)
        return n_read, len(files) - n_read

    def send(self) -> None:
        """Hands over what waits; steps stay open."""
        if self._current is not None:
            self._current[1].queue.send_all()

    def close_steps(self) -> None:
        """Closes every open step."""
        if self._current is not None:
            self._current[1].queue.close_all()
            self.state.keep({}, self._current[0], ())

    def _read_file(self, found: Found, before: FileState | None, done: int) -> None:
        start, line = self._start_of(found, before)
        behind = start > 0
        place = found.path.resolve()
        stop, number, last_step = start, line, before.last_step if before is not None and behind else None
        for n, (row, row_stop, row_number) in enumerate(
            found.format.rows(FileReading(found, self.problems, self.trust_pickle, start, line)), 1
        ):
            if type(row.step) is not int or not isinstance(row.run, (str, type(None))):
                text = f"step {row.step!r} of run {row.run!r}: expected a whole number and a text; it is passed over."
                self.problems.add(found.path, "rows_refused", text, row.line or row_number)
                continue
            current = self._take_up(row.run or self.name)
            row.origin = f"{place}:{row.line or row_number}"
            identity, repeats = identity_of(row)
            is_new = (
                self.state.add_repeats(current[0], identity, row.step)
                if behind and repeats
                else self.state.is_new(current[0], identity, row.step, repeats=repeats)
            )
            if not is_new:
                self.known += 1
            elif (row.step, row.split) in current[1].queue.open_keys:
                current[1].add(row, found.format.behind)
            else:
                self.state.open_step(current[0], row.step, row.split)
                current[1].add(row, found.format.behind)
                progress = FileState(-1, 0, stop, number, _tail(found, stop), last_step)
                self.state.keep({found.path: progress}, current[0], current[1].queue.open_keys)
            last_step = row.step if last_step is None else max(last_step, row.step)
            stop, number = row_stop, row_number
            if n % 64 == 0:
                self.progress(done + min(stop, found.size))
        size = found.size if found.format.is_final(found) else -1
        state = FileState(size, found.mtime_ns, stop, number, _tail(found, stop), last_step)
        name, importer = self._current or (self.name, None)
        self.state.keep({found.path: state}, name, importer.queue.open_keys if importer else ())
        self._say_late(found)

    def _take_up(self, name: str) -> tuple[str, RunImport]:
        """Gives the import that takes the rows of a run; the steps of another one before it are closed."""
        if self._current is None or self._current[0] != name:
            before = self._current
            self._current = name, self.import_of(name)
            self.names[name] = None
            if before is not None:
                self.state.keep({}, before[0], ())
        return self._current

    def _start_of(self, found: Found, before: FileState | None) -> tuple[int, int]:
        if before is None or not found.format.lines or not before.stop:
            return 0, 0
        if before.tail and _tail(found, before.stop) == before.tail:
            return before.stop, before.line
        if before.size >= 0 and found.path.suffix not in PACKED:
            text = "was written anew since it was imported; what is new in it is imported."
            self.problems.add(found.path, "files_that_changed", text)
        return 0, 0

    def _say_late(self, found: Found) -> None:
        if self._current is not None and self._current[1].queue.late and not self._said_late:
            self._said_late = True
            text = (
                "its steps do not come in order; rows of a step that was closed before are late parts of it."
            )
            self.problems.add(found.path, "rows_out_of_order", text)


def _tail(found: Found, stop: int) -> bytes:
    """A hash of the bytes before a place in a file; empty where it ends before that, or has no places."""
    if not stop or not found.format.lines or found.path.suffix == ".gz":
        return b""
    try:
        with opened(found.path, max(stop - _TAIL, 0)) as file:
            data = file.read(min(stop, _TAIL))
    except OSError:
        return b""
    return short_hash(data, IDENTITY_BYTES) if len(data) == min(stop, _TAIL) else b""
