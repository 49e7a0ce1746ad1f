"""Flags about what was written: cut, repeated, empty, garbled, or not understood by the tools."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from functools import cache
from typing import Annotated

import numpy as np

from rollout_traces.decode.grammars.parse import FAMILIES
from rollout_traces.flags.detect import Population, RowFlags, TracedRow
from rollout_traces.flags.registry import also_on_rows, counted, make_flag, population_flag, row_flag
from rollout_traces.ledger.text_facts import tool_failed
from rollout_traces.metrics.loops import FILLED, LONGEST_PERIOD, WINDOW, Loop, longest_loops, repetitions
from rollout_traces.model.text import MOST, REPLACEMENT, quoted, words
from rollout_traces.model.transcript import THINKING_UNCLOSED, UNPARSED, Flag, Transcript, Turn

_ENDS_ALIKE = 3
"""Longer sampled runs that have to end on one token for it to be taken for the end marker."""


@population_flag(
    meaning="sampling stopped at the length limit",
    needs=("stop_reasons",),
    explained_by=("repetition", "loop"),
    given="stop_reason",
    follows=("stop_reason length",),
)
def truncated(population: Population) -> RowFlags:
    """Stop reason `length`, whatever the markers say."""
    cut = np.flatnonzero(population.ledger.get("stop_reason") == "length").tolist()
    if not cut:
        return
    runs = population.sampled_runs
    last = dict(zip(*(part.tolist() for part in runs.last_of_rows()), strict=True))
    for row in cut:
        start, stop = runs.local(last[row]) if row in last else (None, None)
        after = (
            ""
            if stop is None
            else f" after {counted(population.sampled.segments.counts[row], 'sampled token')}"
        )
        text = f"Sampling stopped at the length limit{after}."
        yield row, make_flag("truncated", text, start=start, stop=stop)


@row_flag(
    meaning="the last assistant turn has no end marker and no stop reason explains it",
    needs=("tokens",),
    explained_by=("truncated",),
)
def no_end_marker(
    row: TracedRow,
    *,
    explained_by: Annotated[Collection[str], "stop reasons that explain it"] = words(
        "length abort aborted canceled cancelled timeout error max_turns"
    ),
) -> Iterator[Flag]:
    """Nothing after the body of a last, sampled assistant turn.

    Off where no user or assistant turn of the row has a special end marker: the template may write none. A special
    token at the end is taken for one, unless it closes a call.
    """
    transcript = row.transcript
    if transcript.source == "mask" or not transcript.turns or row.stop_reason in explained_by:
        return
    index, turn = len(transcript.turns) - 1, transcript.turns[-1]
    if turn.role != "assistant" or not turn.n_sampled or turn.body_stop < turn.stop:
        return
    special = transcript.tokens.special
    ends = [special[t.body_stop : t.stop].any() for t in transcript.turns if t.role in ("user", "assistant")]
    closes_a_call = any(call.stop == turn.stop for call in turn.tool_calls)
    if not any(ends) or (special[turn.stop - 1] and not closes_a_call):
        return
    reason = (
        "no stop reason was given"
        if row.stop_reason is None
        else f"the stop reason is {quoted(row.stop_reason)}"
    )
    yield make_flag(
        "no_end_marker",
        f"The last assistant turn ends without an end marker after {counted(len(turn), 'token')}, and {reason}.",
        turn=index,
        start=turn.stop - 1,
        stop=turn.stop,
    )


@population_flag(
    meaning="a short period repeats itself over most of the last sampled tokens",
    needs=("tokens",),
    explained_by=("gibberish",),
)
def repetition(
    population: Population,
    *,
    max_period: Annotated[int, "longest period looked for, tokens"] = LONGEST_PERIOD,
    window: Annotated[int, "last sampled tokens looked at"] = WINDOW,
    share: Annotated[float, "of the window that must repeat"] = FILLED,
) -> RowFlags:
    """The rollouts that the metric `repetition_share` counts, with the loop of their shortest period."""
    loops = repetitions(population.sampled, window=window, longest_period=max_period, filled=share)
    for row, loop in loops.items():
        what = "token repeats" if loop.period == 1 else f"{loop.period} tokens repeat"
        text = (
            f"The same {what} {loop.covered / loop.period:.0f} times over {loop.covered} of the last {window} "
            "sampled tokens."
        )
        first = int(population.batch.offsets[row])
        yield row, make_flag("repetition", text, start=loop.start - first, stop=loop.stop - first)


@population_flag(meaning="an assistant turn has no content", explained_by=("truncated",))
def empty_completion(population: Population) -> RowFlags:
    """A sampled turn of nothing but the end marker, or no sampled token at all.

    Without text, the end marker is the token that ends at least half of the hand-over's longer sampled
    runs (three of them or more).
    """
    batch, runs = population.batch, population.sampled_runs
    if batch.response_mask_source != "loss_mask":
        nothing = (batch.lengths > 0) & (population.sampled.segments.counts == 0) & (batch.loss_counts == 0)
        for row in nothing.nonzero()[0].tolist():
            yield row, make_flag("empty_completion", "No token of the row was sampled.")
    longer = batch.input_ids[runs.stops[runs.lengths > 1] - 1]
    if len(longer) < _ENDS_ALIKE:
        return
    ids, counts = np.unique(longer, return_counts=True)
    if counts.max() < max(_ENDS_ALIKE, len(longer) / 2):
        return
    marker = ids[np.argmax(counts)]
    for run in np.flatnonzero((runs.lengths == 1) & (batch.input_ids[runs.starts] == marker)).tolist():
        start, stop = runs.local(run)
        text = f"The sampled turn at token {start} is nothing but the end marker."
        yield runs.rows[run], make_flag("empty_completion", text, start=start, stop=stop)


@also_on_rows("empty_completion")
def empty_turn(row: TracedRow) -> Iterator[Flag]:
    """A sampled assistant turn without content and tool calls; unclosed thinking is another flag."""
    for index, turn in row.written_turns():
        if turn.content.strip() or turn.tool_calls or _unclosed_thinking(turn) is not None:
            continue
        what = "nothing but thinking" if turn.thinking else "no content"
        if not turn.n_sampled:
            yield make_flag("empty_completion", f"Assistant turn {index} has {what}.", turn=index)
            continue
        sampled = turn.start + np.flatnonzero(row.transcript.tokens.response_mask[turn.start : turn.stop])
        text = f"Assistant turn {index} has {what} in {counted(turn.n_sampled, 'sampled token')}."
        yield make_flag("empty_completion", text, turn=index, start=sampled[0], stop=sampled[-1] + 1)


@row_flag(meaning="an assistant turn holds broken characters, or words whose letters are of several scripts")
def gibberish(
    row: TracedRow,
    *,
    replacement_share: Annotated[float, "of a turn's characters that may be U+FFFD"] = 0.02,
    script_share: Annotated[
        float,
        "of a turn's letters that may stand beside a letter of a script that no language writes it with",
    ] = 0.1,
    min_characters: Annotated[int, "broken characters, or such letters, from which it fires"] = 8,
) -> Iterator[Flag]:
    """Shares of U+FFFD among characters, and of letters beside one of another script; Greek never counts."""
    transcript = row.transcript
    for index, turn in row.written_turns():
        if turn.raw.isascii():
            continue
        points = code_points(turn.raw)
        broken = points == ord(REPLACEMENT)
        if broken.sum() >= min_characters and broken.mean() > replacement_share:
            text = f"{broken.sum()} of {len(points)} characters of the turn are broken (U+FFFD)."
            yield _at_characters("gibberish", text, transcript, index, broken)
            continue
        codes = script_codes(points)
        mixed = script_changes(codes)
        if mixed.sum() >= min_characters and mixed.sum() > script_share * (codes > 0).sum():
            text = (
                f"{mixed.sum()} of {(codes > 0).sum()} letters of the turn stand in words of several scripts."
            )
            yield _at_characters("gibberish", text, transcript, index, mixed)


@row_flag(meaning="tool-call markers without a call that can be parsed", explained_by=("truncated",))
def tool_call_unparsed(row: TracedRow) -> Iterator[Flag]:
    """Calls of assistant turns whose name or arguments could not be read."""
    for index, turn in row.written_turns():
        reasons = [warning for warning in turn.warnings if warning.startswith(UNPARSED)]
        broken = [call for call in turn.tool_calls if not call.parsed]
        for number, call in enumerate(broken):
            why = reasons[number].removeprefix(UNPARSED).strip(" :") if number < len(reasons) else ""
            text = (
                f"A tool call of {len(call.raw)} characters could not be parsed{': ' + why if why else '.'}"
            )
            yield make_flag("tool_call_unparsed", text, turn=index, start=call.start, stop=call.stop)


@row_flag(
    meaning="a tool result says that the call failed",
    given="n_tool_errors",
    follows=("n_tool_errors", "error_signatures *"),
)
def tool_error(row: TracedRow) -> Iterator[Flag]:
    """Tool turns that `text_facts.tool_failed` recognises."""
    for index, turn in enumerate(row.transcript.turns):
        if tool_failed(turn):
            start = " ".join(turn.content.split())[:MOST]
            tool = quoted(turn.name) if turn.name else "a tool"
            text = f"The result of {tool} says that it failed: {quoted(start)}."
            yield make_flag("tool_error", text, turn=index, start=turn.start, stop=turn.stop)


@row_flag(meaning="thinking was opened and not closed", explained_by=("truncated",))
def thinking_unclosed(row: TracedRow) -> Iterator[Flag]:
    """An opening marker of a thinking block without its closing marker in a sampled assistant turn."""
    for index, turn in row.written_turns():
        at = _unclosed_thinking(turn)
        if at is None:
            continue
        if not len(row.transcript.tokens):
            text = "Thinking is opened and not closed."
            yield make_flag("thinking_unclosed", text, turn=index)
            continue
        start = token_at(row.transcript, index, at)
        text = f"Thinking is opened at token {start} and not closed in the {counted(turn.stop - start, 'token')} to the end."
        yield make_flag("thinking_unclosed", text, turn=index, start=start, stop=turn.stop)


def token_at(transcript: Transcript, index: int, character: int) -> int:
    """The token of a turn in which a character of its raw text begins."""
    turn = transcript.turns[index]
    at = character + int(transcript.tokens.char_starts[turn.start])
    inside = slice(turn.start, turn.stop)
    holds = np.searchsorted(transcript.tokens.char_stops[inside], at, side="right")
    begins = np.searchsorted(transcript.tokens.char_starts[inside], at, side="left")
    return turn.start + int(min(holds, begins))


def _unclosed_thinking(turn: Turn) -> int | None:
    """Finds where in the raw text the block opens that the decoder found unclosed; None when there is none."""
    if not any(warning.startswith(THINKING_UNCLOSED) for warning in turn.warnings):
        return None
    openings = []
    for family in FAMILIES:
        closed = turn.raw.rfind(family.closing)
        openings.append(turn.raw.find(family.opening, 0 if closed < 0 else closed + len(family.closing)))
    return min((at for at in openings if at >= 0), default=0)


def _at_characters(name: str, text: str, transcript: Transcript, index: int, where: np.ndarray) -> Flag:
    if not len(transcript.tokens):
        return make_flag(name, text, turn=index)
    at = np.flatnonzero(where)
    start = token_at(transcript, index, int(at[0]))
    last = int(at[-1])
    whole = last + 1 == len(transcript.turns[index].raw)
    stop = transcript.turns[index].stop if whole else token_at(transcript, index, last + 1)
    stop = max(stop, token_at(transcript, index, last) + 1)
    return make_flag(name, text, turn=index, start=start, stop=stop)


@population_flag(
    meaning="the policy writes the same stretch several times in a row, of any length, anywhere in the rollout",
    needs=("tokens",),
)
def loop(
    population: Population,
    *,
    rounds: Annotated[int, "times that a stretch must be written in a row"] = 3,
    min_tokens: Annotated[int, "tokens that all rounds together must have"] = 192,
) -> RowFlags:
    """The longest such stretch of a rollout; what `repetition` speaks of, a short period at the end, is not said again."""
    sampled = population.sampled
    starts, counts = sampled.segments.starts, sampled.segments.counts
    for row, seen in longest_loops(sampled, rounds=rounds, min_tokens=min_tokens).items():
        if _is_repetition(seen, int(counts[row])):
            continue
        first = int(starts[row])
        positions = sampled.positions[first + seen.start : first + seen.stop] - int(
            population.batch.offsets[row]
        )
        what = "token" if seen.period == 1 else f"{seen.period} tokens"
        times = f"{seen.covered / seen.period:,.1f}".removesuffix(".0")
        text = f"The same {what} {times} times in a row, {seen.covered:,} tokens in all."
        yield row, make_flag("loop", text, start=positions[0], stop=positions[-1] + 1)


def _is_repetition(seen: Loop, n_sampled: int) -> bool:
    at_the_end = seen.stop - max(seen.start, n_sampled - WINDOW)
    return seen.period <= LONGEST_PERIOD and at_the_end > FILLED * WINDOW


_HAN = "Chinese or Japanese"
_INDIC = "DEVANAGARI BENGALI GURMUKHI GUJARATI ORIYA TAMIL TELUGU KANNADA MALAYALAM SINHALA"
_SCRIPTS = {
    **{
        name.upper(): name for name in words("Latin Cyrillic Armenian Hebrew Arabic Thai Lao Tibetan Myanmar")
    },
    **{name.upper(): name for name in words("Georgian Hangul Ethiopic Khmer Mongolian")},
    **dict.fromkeys(words("CJK HIRAGANA KATAKANA"), _HAN),
    **dict.fromkeys(words(_INDIC), "Indic"),
}
"""The first word of a character's Unicode name -> its writing system; Greek is left out, mathematics uses it."""
NAMES = ("", *sorted(set(_SCRIPTS.values())))


def code_points(text: str) -> np.ndarray:
    """uint32 [n characters]; lone surrogates as they are."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def script_codes(points: np.ndarray) -> np.ndarray:
    """uint8 [n]: index into `NAMES` of each character's writing system, 0 for anything but letters."""
    different, places = np.unique(points, return_inverse=True)
    return np.asarray([_script_code(point) for point in different.tolist()], np.uint8)[places]


@cache
def _script_code(point: int) -> int:
    first = re.split("[ -]", unicodedata.name(chr(point), ""))[0]
    return NAMES.index(_SCRIPTS.get(first, ""))


_WITHOUT_SPACES = (_HAN, "Hangul", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
_BESIDE_LATIN = np.isin(NAMES, _WITHOUT_SPACES)
_LATIN = NAMES.index("Latin")
_BESIDE_HANGUL = (NAMES.index("Hangul"), NAMES.index(_HAN))


def script_changes(codes: np.ndarray) -> np.ndarray:
    """bool [n]: letters right behind a letter of another script that no language writes it with.

    Names in Latin letters stand beside scripts without spaces; Hangul stands beside Chinese characters.

    Args:
        codes: uint8 [n], see `script_codes`.
    """
    one, two = codes[:-1], codes[1:]
    changes = (one > 0) & (two > 0) & (one != two)
    changes &= ~((one == _LATIN) & _BESIDE_LATIN[two]) & ~((two == _LATIN) & _BESIDE_LATIN[one])
    changes &= ~(np.isin(one, _BESIDE_HANGUL) & np.isin(two, _BESIDE_HANGUL))
    return np.concatenate([np.zeros(min(len(codes), 1), bool), changes])
