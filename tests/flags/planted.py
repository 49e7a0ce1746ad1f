"""Faults planted in healthy steps, and a table of what the flags make of them.

    python -m tests.flags.planted [tokenizer ...]

prints one line a fault: the flag, what was planted and in what, whether it was found, whether its range is right.
Tokenizers are those of `tests/decode/conftest.py`; without a name a small one with Qwen3's template is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.settings.run_settings import RunSettings
from tests.flags.steps import STEP, Step, desk_conversations, find_flags, healthy_step, made_up_conversations

ROW = 5
"""The row that most faults are planted in."""
GROUP = (4, 5, 6, 7)
"""Its group."""


@dataclass(frozen=True)
class Planted:
    """What a fault should give.

    Attributes:
        rows: the rows that should carry the flag; no other row may.
        start: first token of the flag, None for flags of the whole row.
        stop: one past its last token.
        slack: tokens that either edge may be off: where a repetition begins is a matter of taste.
    """

    rows: tuple[int, ...] = (ROW,)
    start: int | None = None
    stop: int | None = None
    slack: int = 0


@dataclass(frozen=True)
class Fault:
    """A fault and the flag that should find it.

    Attributes:
        flag: the flag's name.
        what: what is done to the step.
        plant: changes the step and says what should be found.
        without: canonical keys that the hand-over lacks.
        parameters: thresholds that the flag needs.
        settings: what the run declares.
        applies: whether a tokenizer can have the fault at all.
    """

    flag: str
    what: str
    plant: Callable[[Step], Planted]
    without: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: RunSettings | None = None
    applies: Callable[[Any], bool] = lambda tokenizer: True


@dataclass(frozen=True)
class Outcome:
    """What came of a fault: found on the right rows, on how many of the others, with the right range."""

    found: bool
    elsewhere: int
    others: int
    range_right: bool
    message: str


def _has_bos(tokenizer: Any) -> bool:
    return tokenizer.bos_token_id is not None


def _writes_bos(tokenizer: Any) -> bool:
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "Aqq"}], tokenize=False)
    return _has_bos(tokenizer) and rendered.startswith(tokenizer.bos_token)


def _writes_newline(tokenizer: Any) -> bool:
    messages = [{"role": "user", "content": "Aqq"}, {"role": "assistant", "content": "Bqq"}]
    return tokenizer.apply_chat_template(messages, tokenize=False).endswith("\n")


def carriers(fault: Fault, step: Step, decoder: TranscriptDecoder) -> set[int]:
    """The rows of a step that carry a fault's flag before it is planted: tools do fail in real data."""
    found = find_flags(step.batch(), decoder, step.tokenizer, only=[fault.flag], parameters=fault.parameters)
    return {row for row, flags in found.flags.items() if flags}


def try_fault(
    fault: Fault,
    healthy: Step,
    decoder: TranscriptDecoder,
    before: set[int] | None = None,
    rows: Sequence[int] | None = None,
) -> Outcome:
    """Plants a fault in a copy of a healthy step and looks for it.

    Args:
        fault: what is planted.
        healthy: the step.
        decoder: the tokenizer's decoder.
        before: rows that carry the flag in the healthy step; looked for when None.
        rows: rows that are decoded; all when None.
    """
    before = carriers(fault, healthy, decoder) if before is None else before
    step = healthy.copy()
    planted = fault.plant(step)
    batch = step.batch(without=fault.without)
    seen = find_flags(
        batch,
        decoder,
        step.tokenizer,
        rows=rows if rows is None or len(planted.rows) <= len(rows) else None,
        only=[fault.flag],
        parameters=fault.parameters,
        settings=fault.settings,
    )
    assert not seen.errors.total, seen.errors.first
    raised = {row: seen.named(fault.flag, row) for row in seen.flags}
    flags = [flag for row in planted.rows for flag in raised[row]]
    ranges = [(flag.start, flag.stop) for flag in flags]
    return Outcome(
        found=all(raised[row] for row in planted.rows),
        elsewhere=len({row for row in raised if raised[row]} - before - set(planted.rows)),
        others=len(set(raised) - before - set(planted.rows)),
        range_right=bool(flags) and any(_close(planted, *found) for found in ranges),
        message=flags[0].message if flags else "",
    )


def _close(planted: Planted, start: int | None, stop: int | None) -> bool:
    if planted.start is None or planted.stop is None or start is None or stop is None:
        return (planted.start, planted.stop) == (start, stop)
    return abs(planted.start - start) <= planted.slack and abs(planted.stop - stop) <= planted.slack


def _leak_in_environment(step: Step) -> Planted:
    row = step.rows[ROW]
    start = (row.runs()[0][1] + row.runs()[1][0]) // 2 - 2
    row.tracks["loss_mask"][start : start + 3] = 1
    return Planted(start=start, stop=start + 3)


def _leak_everywhere(step: Step) -> Planted:
    row = step.rows[ROW]
    row.tracks["loss_mask"][:] = 1
    first = step.encode(step.tokenizer.apply_chat_template(list(row.messages[:1]), tokenize=False))
    return Planted(start=0, stop=len(first))


def _leak_with_assumed_mask(step: Step) -> Planted:
    planted = _leak_in_environment(step)
    for row in step.rows:
        row.tracks["logprobs"] *= row.sampled
    return planted


def _untrained(step: Step) -> Planted:
    start = step.rows[ROW].runs()[1][0] + 2
    step.rows[ROW].tracks["loss_mask"][start : start + 4] = 0
    return Planted(start=start, stop=start + 4)


def _row_masked(step: Step) -> Planted:
    step.rows[ROW].tracks["loss_mask"][:] = 0
    return Planted(start=0, stop=len(step.rows[ROW]))


def _eos_untrained(step: Step) -> Planted:
    at = step.rows[ROW].runs()[1][1] - 1
    step.rows[ROW].tracks["loss_mask"][at] = 0
    return Planted(start=at, stop=at + 1)


def _eos_alone_trained(step: Step) -> Planted:
    start, stop = step.rows[ROW].runs()[1]
    step.rows[ROW].tracks["loss_mask"][start : stop - 1] = 0
    return Planted(start=stop - 1, stop=stop)


def _shifted(by: int) -> Callable[[Step], Planted]:
    def plant(step: Step) -> Planted:
        row = step.rows[ROW]
        row.tracks["loss_mask"] = np.roll(row.tracks["loss_mask"], by)
        start, stop = row.runs()[0]
        return Planted(start=start + by, stop=stop + by)

    return plant


def _all_shifted(step: Step) -> Planted:
    for row in step.rows:
        row.tracks["loss_mask"] = np.roll(row.tracks["loss_mask"], -1)
    start, stop = step.rows[ROW].runs()[0]
    return Planted(rows=tuple(range(len(step.rows))), start=start - 1, stop=stop - 1)


def _ends_unsampled(step: Step) -> Planted:
    row = step.rows[ROW]
    n, new = len(row), step.tool_turn("Done.")
    row.splice(n, n, new, sampled=False)
    row.tracks["loss_mask"][n:] = 0
    row.tracks["versions"][n:] = -1
    row.tracks["turn_ids"][n:] = -1
    return Planted(start=n, stop=n + len(new))


def _cut(step: Step, reason: str | None) -> tuple[int, int]:
    row = step.rows[ROW]
    start, stop = row.runs()[-1]
    row.splice(stop - 1, len(row), [], sampled=False)
    row.values["stop_reasons"] = reason
    return start, stop - 1


def _truncated(step: Step) -> Planted:
    start, stop = _cut(step, "max_new_tokens")
    return Planted(start=start, stop=stop)


def _no_end_marker(step: Step) -> Planted:
    _, stop = _cut(step, None)
    return Planted(start=stop - 1, stop=stop)


def _write(step: Step, text: str, *, before_end: int = 1) -> tuple[int, int]:
    """Lets the policy write a text at the end of its last turn, before the end marker."""
    row = step.rows[ROW]
    at = row.runs()[-1][1] - before_end
    new = step.encode(text)
    row.splice(at, at, new, sampled=True)
    return at, at + len(new)


def _repetition(step: Step) -> Planted:
    phrase = " the flight is late and"
    start, stop = _write(step, phrase * (170 // len(step.encode(phrase))))
    return Planted(start=start, stop=stop, slack=len(step.encode(phrase)))


def _replaced_characters(step: Step) -> Planted:
    start, stop = _write(step, "\ufffd" * 60)
    return Planted(start=start, stop=stop)


def _mixed_scripts(step: Step) -> Planted:
    text = "пр한иве的т каке क дไела всеअ хор답ошо " * 40
    start, stop = _write(step, text.strip())
    return Planted(start=start, stop=stop, slack=40)


def _empty_completion(step: Step) -> Planted:
    row = step.rows[ROW]
    start, stop = row.runs()[-1]
    row.splice(start, stop - 1, [], sampled=False)
    return Planted(start=start, stop=start + 1)


def _unparsed_call(step: Step) -> Planted:
    start, stop = _write(step, '<tool_call>\n{"name": "get_user", "arguments": {"id": \n</tool_call>')
    marked = "<tool_call>" in str(step.tokenizer.chat_template)
    return Planted(start=start, stop=stop, slack=0 if marked else 8)


def _tool_error(step: Step) -> Planted:
    row = step.rows[ROW]
    new = step.tool_turn("Error: the reservation was not found")
    n = len(row)
    row.splice(n, n, new, sampled=False)
    row.tracks["versions"][n:] = -1
    row.tracks["loss_mask"][n:] = 0
    return Planted(start=n, stop=n + len(new), slack=1)


def _thinking_unclosed(step: Step) -> Planted:
    row = step.rows[ROW]
    start, stop = row.runs()[-1]
    row.splice(
        start, stop - 1, step.encode("<think>\nThe user wants to cancel, so let me see."), sampled=True
    )
    return Planted(start=start, stop=len(row))


def _stale(step: Step) -> Planted:
    start, stop = step.rows[ROW].runs()[1]
    step.rows[ROW].tracks["versions"][start:stop] = STEP - 5
    return Planted(start=start, stop=stop)


def _mixed_versions(step: Step) -> Planted:
    start, stop = step.rows[ROW].runs()[1]
    step.rows[ROW].tracks["versions"][start + 4 : stop] = STEP - 1
    return Planted(start=start + 4, stop=stop)


def _mismatch(step: Step) -> Planted:
    row = step.rows[ROW]
    row.tracks["prox_logprobs"] = row.tracks["prox_logprobs"] - 0.2 * row.sampled.astype(np.float32)
    at = row.runs()[1][0] + 3
    row.tracks["prox_logprobs"][at] -= 6
    return Planted(start=at, stop=at + 1)


def _nan_token(key: str) -> Callable[[Step], Planted]:
    def plant(step: Step) -> Planted:
        at = step.rows[ROW].runs()[1][0] + 2
        step.rows[ROW].tracks[key][at] = np.nan
        return Planted(start=at, stop=at + 1)

    return plant


def _inf_reward(step: Step) -> Planted:
    step.rows[ROW].values["rewards"] = np.inf
    return Planted()


def _nan_advantages(step: Step) -> Planted:
    row = step.rows[ROW]
    row.tracks["advantages"][row.sampled] = np.nan
    start, stop = row.runs()[0]
    return Planted(start=start, stop=stop)


def _retokenized(step: Step) -> Planted:
    row = step.rows[ROW]
    start, stop = row.runs()[0]
    for at in range(start, stop - 1):
        text = step.tokenizer.decode([int(row.ids[at])])
        for cut in range(1, len(text)):
            halves = [step.encode(text[:cut]), step.encode(text[cut:])]
            if text.isascii() and [len(half) for half in halves] == [1, 1]:
                row.splice(at, at + 1, halves[0] + halves[1], sampled=True)
                return Planted(start=at, stop=at + 2)
    raise AssertionError("no token of the turn can be written as two")


def _dropped_newline(step: Step) -> Planted:
    row = step.rows[ROW]
    stop = row.runs()[0][1]
    row.splice(stop, stop + len(step.encode("\n")), [], sampled=False)
    following = stop
    for marker in ("<|im_start|>user\n", "<tool_response>\n"):
        ids = step.encode(marker)
        following += len(ids) if row.ids[following : following + len(ids)].tolist() == ids else 0
    return Planted(start=stop - 1, stop=following)


def _added_newlines(step: Step) -> Planted:
    row, new = step.rows[ROW], step.encode("\n\n\n")
    start = row.runs()[1][0]
    at = start - len(step.header())
    row.splice(at, at, new, sampled=False)
    return Planted(start=at, stop=start + len(new), slack=8)


def _broken_prefix(step: Step) -> Planted:
    before, row = step.rows[ROW - 1], step.rows[ROW]
    row.ids = np.concatenate([before.ids, row.ids])
    row.sampled = np.concatenate([np.zeros(len(before), bool), row.sampled])
    unsampled = {"loss_mask": 0, "turn_ids": -1, "versions": -1}
    row.tracks = {
        key: np.concatenate([np.full(len(before), unsampled.get(key, 0), values.dtype), values])
        for key, values in row.tracks.items()
    }
    row.ids[40] += 1
    for call, each in enumerate((before, row)):
        each.values["extras"] = {"trajectory": "t-1", "call": call}
    return Planted(start=40, stop=row.runs()[0][0])


def _rewards(*rewards: float) -> Callable[[Step], Planted]:
    def plant(step: Step) -> Planted:
        for row, reward in zip(GROUP, rewards, strict=True):
            step.rows[row].values["rewards"] = reward
        return Planted(rows=GROUP)

    return plant


def _outlier(step: Step) -> Planted:
    step.rows[ROW].values["rewards"] = 9.0
    step.group_size = 8
    for row in step.rows:
        row.values["prompt_keys"] = "one task"
    return Planted()


def _duplicate(step: Step) -> Planted:
    step.rows[6] = step.copy().rows[ROW]
    return Planted(rows=(ROW, 6))


def _nearly_duplicate(step: Step) -> Planted:
    planted = _duplicate(step)
    row = step.rows[6]
    start, stop = row.runs()[0]
    [other] = step.encode("ok")
    at = next(at for at in range((start + stop) // 2, stop) if row.ids[at] != other)
    row.ids[at] = other
    return planted


def _dominates(step: Step) -> Planted:
    step.rows[ROW].tracks["advantages"] *= 200
    return Planted()


def _other_prompt(step: Step) -> Planted:
    step.rows[ROW].values["prompt_keys"] = "another task"
    return Planted(rows=GROUP)


def _scrambled_groups(step: Step) -> Planted:
    for number, row in enumerate(step.rows):
        row.values["group_ids"] = number % (len(step.rows) // 4)
    return Planted(rows=tuple(range(len(step.rows))))


def _positive_logprob(step: Step) -> Planted:
    at = step.rows[ROW].runs()[1][0] + 2
    step.rows[ROW].tracks["logprobs"][at] = 0.7
    return Planted(start=at, stop=at + 1)


def _zero_logprobs(step: Step) -> Planted:
    step.rows[ROW].tracks["logprobs"][:] = 0
    return Planted()


def _foreign_turn(step: Step) -> Planted:
    row = step.rows[ROW]
    new, end = step.user_turn("And another question, please?"), row.runs()[-1][1] - 1
    n_marker = next(n for n in range(1, len(new)) if new[n] in (new[:1] + step.header()[:1]) and n > 0)
    row.splice(end, end + 1, new, sampled=True)
    return Planted(start=end + n_marker, stop=end + len(new), slack=4)


def _bare_header(step: Step) -> Planted:
    row = step.rows[ROW]
    start = row.runs()[1][0]
    header, bare = step.header(), step.bare_header()
    assert row.ids[start - len(header) : start].tolist() == header
    row.splice(start - len(header), start, bare, sampled=False)
    at = start - len(header)
    return Planted(start=at, stop=at + len(bare), slack=1)


def _doubled_bos(step: Step) -> Planted:
    row, bos = step.rows[ROW], step.tokenizer.bos_token_id
    n = 2 if row.ids[0] != bos else 1
    row.splice(0, 0, [bos] * n, sampled=False)
    return Planted(start=0, stop=2)


def _missing_bos(step: Step) -> Planted:
    step.rows[ROW].splice(0, 1, [], sampled=False)
    return Planted(start=0, stop=1)


def _older_later_turn(step: Step) -> Planted:
    start, stop = step.rows[ROW].runs()[1]
    step.rows[ROW].tracks["versions"][start:stop] = STEP - 1
    return Planted(start=start, stop=start + 1)


def _ahead(step: Step) -> Planted:
    start = step.rows[ROW].runs()[0][0]
    step.rows[ROW].tracks["versions"][step.rows[ROW].sampled] = STEP + 1
    return Planted(start=start, stop=start + 1)


def _padding(at_end: bool) -> Callable[[Step], Planted]:
    def plant(step: Step) -> Planted:
        row = step.rows[ROW]
        at = len(row) if at_end else 0
        row.splice(at, at, [step.pad_id] * 5, sampled=False)
        row.tracks["loss_mask"][at : at + 5] = 0
        return Planted(start=at, stop=at + 5, slack=1)

    return plant


COLOURS = ("red", "green", "blue", "black", "white", "brown", "grey", "pink", "gold", "dark")
THINGS = (
    "house",
    "river",
    "table",
    "garden",
    "letter",
    "window",
    "mountain",
    "flower",
    "street",
    "paper",
    "stone",
)


def _loop(n_tokens: int, rounds: int) -> Callable[[Step], Planted]:
    def plant(step: Step) -> Planted:
        row = step.rows[ROW]
        at = row.runs()[0][0] + 1
        words = " ".join(WORDS[index] for index in np.random.default_rng(3).permutation(len(WORDS)))
        new = step.encode(f" {words}")[:n_tokens] * rounds
        assert len(new) == n_tokens * rounds
        last = row.runs()[-1][1] - 1
        numbers = np.random.default_rng(4).permutation(900)[:90] + 100
        row.splice(last, last, step.encode(" ".join(map(str, numbers))), sampled=True)
        row.splice(at, at, new, sampled=True)
        return Planted(start=at, stop=at + len(new), slack=2)

    return plant


WORDS = tuple(f"{first} {second}" for first in COLOURS for second in THINGS)

FAULTS = (
    Fault("mask_leak", "3 environment tokens in the loss", _leak_in_environment),
    Fault("mask_leak", "loss mask all ones", _leak_everywhere),
    Fault(
        "mask_leak",
        "the same 3 tokens, response mask unknown",
        _leak_with_assumed_mask,
        without=("versions",),
    ),
    Fault("untrained_sampled", "4 sampled tokens out of the loss", _untrained),
    Fault("row_masked", "loss mask all zeros", _row_masked),
    Fault("eos_untrained", "an end marker out of the loss", _eos_untrained),
    Fault("eos_untrained", "an end marker alone in the loss", _eos_alone_trained),
    Fault("mask_shifted", "loss mask rolled left by one", _shifted(-1)),
    Fault("mask_shifted", "loss mask rolled right by one", _shifted(1)),
    Fault(
        "mask_shifted",
        "all rows rolled left, versions unknown",
        _all_shifted,
        without=("versions", "turn_ids"),
    ),
    Fault("ends_unsampled", "a tool's result after the last answer", _ends_unsampled),
    Fault("truncated", "stop reason max_new_tokens", _truncated),
    Fault("no_end_marker", "the end marker dropped, no stop reason", _no_end_marker),
    Fault("repetition", "a phrase repeated over 170 tokens", _repetition),
    Fault("gibberish", "60 replacement characters", _replaced_characters),
    Fault("gibberish", "words of several scripts", _mixed_scripts),
    Fault("empty_completion", "the last turn's body dropped", _empty_completion),
    Fault("tool_call_unparsed", "a tool call of broken JSON", _unparsed_call),
    Fault("tool_error", "a tool result that opens with Error:", _tool_error),
    Fault("thinking_unclosed", "<think> without </think>", _thinking_unclosed),
    Fault("stale", "a turn five versions old", _stale, parameters={"stale.limit": 3}),
    Fault("mixed_versions", "the version changes after four tokens of a turn", _mixed_versions),
    Fault("logprob_mismatch", "prox logprobs lower by 0.2, one by 6.2", _mismatch),
    Fault("nonfinite", "a NaN prox logprob", _nan_token("prox_logprobs")),
    Fault("nonfinite", "NaN advantages over a row", _nan_advantages),
    Fault("nonfinite", "an infinite reward", _inf_reward),
    Fault("retokenized", "a token written as two", _retokenized, parameters={"retokenized.context": 6}),
    Fault(
        "template_drift", "the newline after an end marker dropped", _dropped_newline, applies=_writes_newline
    ),
    Fault("template_drift", "three newlines before an assistant header", _added_newlines),
    Fault("prefix_broken", "token 40 of a call's prompt changed", _broken_prefix),
    Fault("group_prompt_mismatch", "one rollout of another prompt", _other_prompt),
    Fault("group_prompt_mismatch", "group ids scrambled over prompts", _scrambled_groups),
    Fault("logprob_out_of_range", "a rollout logprob of 0.7", _positive_logprob),
    Fault(
        "logprob_out_of_range",
        "rollout logprobs all 0, no prox",
        _zero_logprobs,
        without=("prox_logprobs",),
    ),
    Fault("sampled_foreign_turn", "the policy goes on with a user's turn", _foreign_turn),
    Fault("header_drift", "the white space after an assistant header dropped", _bare_header),
    Fault("bos_anomaly", "the beginning token doubled", _doubled_bos, applies=_has_bos),
    Fault("bos_anomaly", "the beginning token dropped", _missing_bos, applies=_writes_bos),
    Fault("version_order", "a later turn of an older version", _older_later_turn),
    Fault("version_order", "a row of a version ahead of the trainer", _ahead),
    Fault("pad_attended", "five padding tokens attended at the start", _padding(at_end=False)),
    Fault("pad_attended", "five padding tokens attended at the end", _padding(at_end=True)),
    Fault("loop", "150 tokens three times over, in the first turn", _loop(150, 3)),
    Fault("loop", "3 tokens a hundred times over, in the first turn", _loop(3, 100)),
    Fault("tied_group", "one reward for a whole group", _rewards(0.5, 0.5, 0.5, 0.5)),
    Fault("noise_amplified_group", "three rewards 1.0 and one 0.999", _rewards(1.0, 1.0, 1.0, 0.999)),
    Fault("reward_outlier", "a reward of 9 in a group of 8", _outlier),
    Fault("duplicate_completions", "one completion twice in a group", _duplicate),
    Fault("duplicate_completions", "the same with one token changed", _nearly_duplicate),
    Fault("dominates_update", "a row's advantage times 200", _dominates),
)


def faults_for(tokenizer: Any) -> list[Fault]:
    """The faults that can be planted in what a tokenizer writes."""
    return [fault for fault in FAULTS if fault.applies(tokenizer)]


def healthy_steps(tokenizer: Any) -> list[Step]:
    """The steps that faults are planted in: conversations of a service desk, and short ones."""
    desk = healthy_step(tokenizer, desk_conversations(16), "desk")
    return [desk, healthy_step(tokenizer, made_up_conversations(16), "made up")]


def main(names: Sequence[str]) -> None:
    """Prints the table."""
    from rich.console import Console
    from rich.table import Table

    from tests.decode.conftest import load_tokenizer
    from tests.generator import tiny_tokenizer

    table = Table("flag", "planted", "in", "found", "elsewhere", "range right", "what it says")
    for name in names or ("tiny",):
        tokenizer = tiny_tokenizer("qwen3") if name == "tiny" else load_tokenizer(name)
        decoder = TranscriptDecoder(tokenizer)
        for step in healthy_steps(tokenizer):
            for fault in faults_for(tokenizer):
                outcome = try_fault(fault, step, decoder)
                table.add_row(
                    fault.flag,
                    fault.what,
                    f"{step.origin}, {name}",
                    "yes" if outcome.found else "NO",
                    str(outcome.elsewhere),
                    "yes" if outcome.range_right else "NO",
                    outcome.message,
                )
    Console(width=220).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
