"""Live files, whatever they hold and however they are cut."""

from __future__ import annotations

import itertools

import orjson
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.model.live_lines import (
    MAX_LINE,
    MAX_TEXT,
    STAGES,
    STAGES_KEPT,
    InFlight,
    LiveFile,
    line_of,
)

NAMES = st.sampled_from(["a", "b", "c"])
TIMES = st.floats(0, 1e10) | st.integers(0, 10**10)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=5,
)
UPDATES = st.fixed_dictionaries(
    {"id": NAMES, "at": TIMES},
    optional={
        "stage": st.sampled_from(STAGES) | ANYTHING,
        **dict.fromkeys(("detail", "turns", "tokens", "words", "prompt", "begun", "since"), ANYTHING),
    },
)
LINES = st.lists(
    UPDATES.map(lambda line: orjson.dumps(line, default=str))
    | st.binary(max_size=40).map(lambda data: data.replace(b"\n", b""))
    | ANYTHING.map(lambda value: orjson.dumps(value, default=str))
    | st.just(b"x" * (MAX_LINE + 1))
    | st.just(b"[" * 5000),
    max_size=12,
)


def read(*pieces: bytes) -> LiveFile:
    file = LiveFile()
    for piece in pieces:
        file.feed(piece)
    return file


def told(file: LiveFile) -> tuple[object, ...]:
    return file.rollouts, file.head, file.beat, file.is_finished, file.n_unreadable


class TestAnyFile:
    @given(LINES, st.lists(st.integers(0, 2000), max_size=5))
    def test_says_the_same_however_it_is_cut(self, lines, cuts):
        data = b"".join(line + b"\n" for line in lines)
        places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
        pieces = [data[a:b] for a, b in itertools.pairwise(places)]
        assert told(read(*pieces)) == told(read(data))

    @given(LINES, st.integers(0, 3000))
    def test_that_ends_anywhere_says_what_its_whole_lines_say(self, lines, at):
        data = b"".join(line + b"\n" for line in lines)[:at]
        whole = data[: data.rfind(b"\n") + 1]
        assert told(read(data)) == told(read(whole))

    @given(LINES)
    def test_gives_values_that_an_answer_can_hold(self, lines):
        for rollout in read(b"".join(line + b"\n" for line in lines)).rollouts.values():
            assert rollout.stage in STAGES and len(rollout.words or "") <= MAX_TEXT
            assert orjson.loads(rollout.as_line())["id"] == rollout.id

    @given(LINES)
    def test_written_anew_says_the_same_of_every_rollout_but_its_earlier_stages(self, lines):
        def now(rollout: InFlight) -> list[object]:
            return [getattr(rollout, name) for name in rollout.__slots__ if name != "stages"]

        before = read(b"".join(line + b"\n" for line in lines)).rollouts
        after = read(b"".join(each.as_line() for each in before.values())).rollouts
        assert list(map(now, after.values())) == list(map(now, before.values()))


class TestStages:
    def test_one_rollout_with_100_000_keeps_the_newest_and_counts_all(self):
        lines = [
            line_of({"id": "a", "at": n, "stage": ("sampling", "tool")[n % 2], "tokens": n})
            for n in range(100_000)
        ]
        rollout = read(b"".join(lines)).rollouts["a"]
        assert rollout.n_stages == 100_000 and len(rollout.stages) == STAGES_KEPT
        assert rollout.stages[-1].tokens == 99_999

    def test_progress_within_a_stage_is_no_stage(self):
        lines = [line_of({"id": "a", "at": n, "stage": "sampling", "tokens": n}) for n in range(5)]
        rollout = read(*lines).rollouts["a"]
        assert (rollout.n_stages, rollout.since, rollout.at, rollout.tokens) == (1, 0, 4, 4)
        assert [(each.at, each.until) for each in rollout.stages] == [(0, 4)]
