"""What `export` wrote is imported as it was: every ledger column, every turn, every token and track."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

import rollout_traces as rt
from rollout_traces.errors import StoreError
from rollout_traces.export import ExportQuery, export, export_atif, export_partitioned, export_scout
from rollout_traces.export.training import export_training
from rollout_traces.export.training_samples import TrainingOptions
from rollout_traces.sources.importing import import_rollouts
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("trackio_dir")
OF_THE_COPY = {"uid", "trace_uid", "attempt", "origin"}
"""What a copy gives anew: names of rows, where they were read from, and the attempt, which is the import's."""
EVERY = ExportQuery(rows="all")


@pytest.fixture
def original(trackio_dir):
    tokenizer = tiny_tokenizer("qwen3")
    logger = rt.RolloutLogger(
        "original", "r1", tokenizer, max_rollout_traces_per_step=1000, selection="all", worker="thread"
    )
    for step in (1, 2):
        logger.log_rollouts(rollout_batch(tokenizer, BatchPlan(seed=step, group_size=4)), step=step)
        logger.close_step(step)
    assert logger.finish()
    return rt.open_store(project="original")


def ledger_of(store):
    return store.ledger(run=store.runs()[0].id)


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind == "f":
        return np.array_equal(one, other, equal_nan=True)
    return one.tolist() == other.tolist()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_traces_with_tokens_come_back_equal(original, tmp_path, suffix):
    path = tmp_path / "out" / f"rollouts.{suffix}"
    export(original, path, ExportQuery(), tokens=True)
    report = import_rollouts(path, "copy", tokenizer=tiny_tokenizer("qwen3"), worker="thread")
    assert (report.rows, report.problems.counts, report.runs[0].rows_re_encoded) == (32, {}, 0)
    copy = rt.open_store(project="copy")
    before, after = ledger_of(original), ledger_of(copy)
    assert differing(before, after) <= OF_THE_COPY
    for mine, theirs in zip(transcripts(original), transcripts(copy), strict=True):
        assert mine.turns == theirs.turns
        assert (mine.source, mine.warnings, mine.tools) == (theirs.source, theirs.warnings, theirs.tools)
        for name in ("input_ids", "loss_mask", "response_mask"):
            np.testing.assert_array_equal(getattr(mine.tokens, name), getattr(theirs.tokens, name))
        assert set(mine.tokens.tracks) == set(theirs.tokens.tracks)
        for name, track in mine.tokens.tracks.items():
            np.testing.assert_array_equal(track, theirs.tokens.tracks[name])


def test_rows_of_a_ledger_keep_the_numbers_that_their_tokens_told(original, tmp_path):
    path = tmp_path / "out" / "ledger.jsonl"
    export(original, path, ExportQuery(rows="ledger"))
    import_rollouts(path, "copy", worker="thread")
    before, after = ledger_of(original), ledger_of(rt.open_store(project="copy"))
    for name in ("reward", "n_prompt", "n_sampled", "mean_logprob", "version_min", "prompt_key", "group"):
        assert equal(before.get(name), after.get(name)), name


def test_the_runs_of_one_file_stay_apart(original, tmp_path):
    logger = rt.RolloutLogger("original", "r2", worker="thread", max_rollout_traces_per_step=10)
    logger.log_rollouts(rt.RolloutBatch.from_messages([[{"role": "user", "content": "q"}]]), step=1)
    assert logger.finish()
    path = tmp_path / "out" / "both.jsonl"
    export(rt.open_store(project="original"), path, ExportQuery())
    import_rollouts(path, "copy", worker="thread")
    assert {run.name for run in rt.open_store(project="copy").runs()} == {"r1", "r2"}


def transcripts(store):
    rows = store.query(order_by="step, group, sample", limit=100).rows
    return [store.transcript(row.id) for row in rows]


def log_steps(logger, steps, *, seed: int = 0) -> None:
    for step in steps:
        batch = rollout_batch(tiny_tokenizer("qwen3"), BatchPlan(seed=seed + step, group_size=4))
        logger.log_rollouts(batch, step=step)
        logger.close_step(step)


def differing(one, other) -> set[str]:
    """Columns whose values differ, or that one of two ledgers does not have."""
    shared = set(one.columns) & set(other.columns)
    return {name for name in shared if not equal(one.get(name), other.get(name))} | (
        set(one.columns) ^ set(other.columns)
    )


def capped(project: str, **options) -> rt.RolloutLogger:
    return rt.RolloutLogger(
        project, "r1", tiny_tokenizer("qwen3"), max_rollout_traces_per_step=6, worker="thread", **options
    )


class TestACappedProject:
    @pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
    def test_every_column_of_every_row_comes_back_and_the_traced_rows_are_the_same(
        self, trackio_dir, tmp_path, suffix
    ):
        logger = capped("original")
        for step in (1, 2):
            for split in ("rollout", "eval-rollout"):
                batch = rollout_batch(tiny_tokenizer("qwen3"), BatchPlan(seed=step, group_size=4))
                logger.log_rollouts(batch, step=step, split=split)
                logger.close_step(step, split)
        assert logger.finish()
        original = rt.open_store(project="original")
        path = tmp_path / "out" / f"all.{suffix}"
        export(original, path, ExportQuery(rows="all"), tokens=True)
        report = import_rollouts(path, "copy", tokenizer=tiny_tokenizer("qwen3"), worker="thread")
        assert (report.rows, report.problems.counts) == (64, {})
        copy = rt.open_store(project="copy")
        for split in ("rollout", "eval-rollout"):
            before, after = (
                s.ledger(run=s.runs()[0].id, split=split, steps=(1, 2)) for s in (original, copy)
            )
            assert differing(before, after) <= OF_THE_COPY
            traced = [[uid is not None for uid in ledger.get("trace_uid")] for ledger in (before, after)]
            assert traced[0] == traced[1] and sum(traced[0]) == 12
        for mine, theirs in zip(conversations(original), conversations(copy), strict=True):
            assert mine == theirs

    def test_flags_of_rows_without_tokens_come_back_and_say_so(self, trackio_dir, tmp_path):
        logger = capped("original")
        log_steps(logger, (1,))
        assert logger.finish()
        path = tmp_path / "out.jsonl"
        original = rt.open_store(project="original")
        export(original, path, ExportQuery(rows="all"))
        import_rollouts(path, "copy", worker="thread")
        before, after = (
            ledger_of(s).get("flags").tolist() for s in (original, rt.open_store(project="copy"))
        )
        assert before == after and any(before)


def conversations(store):
    """Split, step, place, choice, flags, messages, ids and masks of every trace."""
    found = []
    for row in store.query(order_by="split, step, group, sample", limit=200).rows:
        tokens = store.transcript(row.id).tokens
        chosen = (row["selected_by"], row["selected_probability"], row["flags"])
        told = (tokens.input_ids.tolist(), tokens.loss_mask.tolist(), tokens.response_mask.tolist())
        found.append((row.split, row.step, row["group"], row["sample"], chosen, store.messages(row.id), told))
    return found


class TestSeveralAttempts:
    @pytest.fixture
    def resumed(self, trackio_dir):
        logger = rt.RolloutLogger(
            "original",
            "r1",
            tiny_tokenizer("qwen3"),
            max_rollout_traces_per_step=1000,
            selection="all",
            worker="thread",
        )
        log_steps(logger, (1, 2, 3))
        logger.begin_attempt()
        log_steps(logger, (2, 3), seed=100)
        assert logger.finish()
        return rt.open_store(project="original")

    @pytest.mark.parametrize("form", ["jsonl", "parquet", "partitioned", "atif", "scout"])
    def test_what_is_current_comes_back_and_superseded_rows_are_counted(self, resumed, tmp_path, form):
        write, lost = WRITTEN_AND_READ[form]
        write(resumed, tmp_path / "out")
        tokenizer = tiny_tokenizer("qwen3") if "tokens" not in lost else None
        report = import_rollouts(tmp_path / "out", "copy", tokenizer=tokenizer, worker="thread")
        assert (report.rows, report.problems.counts) == (48, {"superseded_rows": 32})
        before, after = ledger_of(resumed), ledger_of(rt.open_store(project="copy"))
        assert (before.n_rows, after.n_rows) == (48, 48)
        assert sorted(before.get("reward").tolist()) == sorted(after.get("reward").tolist())
        assert differing(before, after) <= OF_THE_COPY


class TestAtif:
    def test_trajectories_come_back_token_for_token_and_are_valid(self, original, tmp_path):
        assert export_atif(original, tmp_path / "out") == 32
        report = import_rollouts(tmp_path / "out", "copy", tokenizer=tiny_tokenizer("qwen3"), worker="thread")
        assert (report.rows, report.problems.counts) == (32, {})
        copy = rt.open_store(project="copy")
        assert {run.name for run in copy.runs()} == {"r1"}
        assert differing(ledger_of(original), ledger_of(copy)) <= OF_THE_COPY
        assert conversations(original) == conversations(copy)
        for mine, theirs in zip(transcripts(original), transcripts(copy), strict=True):
            for name, track in mine.tokens.tracks.items():
                np.testing.assert_array_equal(track, theirs.tokens.tracks[name])
        atif = pytest.importorskip("atif")
        for path in (tmp_path / "out").iterdir():
            found = atif.Trajectory.model_validate_json(path.read_bytes())
            told = found.extra["rollout_traces"]
            calls = [step.metrics for step in found.steps if step.metrics is not None]
            assert sum(call.completion_tokens for call in calls) == sum(map(bool, told["response_mask"]))
            assert calls[-1].prompt_token_ids == told["input_ids"][: calls[-1].prompt_tokens]


class TestABatchHandedBack:
    def test_it_is_the_batch_that_was_logged(self, original):
        given = rollout_batch(tiny_tokenizer("qwen3"), BatchPlan(seed=1, group_size=4))
        batch = original.batch("r1", 1, complete=True)

        def rows(one):
            attended = [np.flatnonzero(np.asarray(mask)) for mask in one.attention_mask]
            return sorted(
                (
                    np.asarray(one.input_ids)[b][at].tolist(),
                    np.asarray(one.loss_mask)[b][at].astype(int).tolist(),
                    np.asarray(one.versions)[b][at].tolist(),
                    float(np.asarray(one.rewards)[b]),
                )
                for b, at in enumerate(attended)
            )

        assert rows(batch) == rows(given) == rows(batch.to_torch())

    def test_a_step_that_was_not_kept_whole_says_so_or_is_refused(self, trackio_dir, caplog):
        logger = capped("original")
        log_steps(logger, (1,))
        assert logger.finish()
        store = rt.open_store(project="original")
        assert len(store.batch("r1", 1).input_ids) == 6
        assert "6 of 16 rollouts were kept" in caplog.text
        with pytest.raises(StoreError, match=r"6 of 16 rollouts were kept.*selection='all'"):
            store.batch("r1", 1, complete=True)
        with pytest.raises(StoreError, match="no rollouts there"):
            store.batch("r1", 9)


def write_training_rows(store, out, form: str) -> None:
    options = TrainingOptions(form, near_duplicates=None, evaluation=True)
    export_training(store, out, options)


WRITTEN_AND_READ = {
    "jsonl": (lambda store, out: export(store, out / "all.jsonl", EVERY, tokens=True), ()),
    "parquet": (lambda store, out: export(store, out / "all.parquet", EVERY, tokens=True), ()),
    "jsonl without tokens": (lambda store, out: export(store, out / "all.jsonl", EVERY), ("tokens",)),
    "partitioned": (lambda store, out: export_partitioned(store, out, tokens=True), ()),
    "atif": (lambda store, out: export_atif(store, out), ("rows that were no traces",)),
    "scout": (lambda store, out: export_scout(store, out), ("rows that were no traces", "tokens")),
    "sft": (
        lambda store, out: write_training_rows(store, out, "sft"),
        ("rows that were no traces", "ledger", "tokens"),
    ),
    "reward": (
        lambda store, out: write_training_rows(store, out, "reward"),
        ("rows that were no traces", "ledger", "tokens"),
    ),
}
"""What is both written and read -> how it is written, and what it cannot hold."""


@pytest.mark.parametrize("form", WRITTEN_AND_READ)
def test_out_and_in_again_gives_the_same_rollouts_but_for_what_a_format_cannot_hold(
    trackio_dir, tmp_path, form
):
    logger = capped("original")
    log_steps(logger, (1, 2))
    assert logger.finish()
    original = rt.open_store(project="original")
    write, lost = WRITTEN_AND_READ[form]
    write(original, tmp_path / "out")
    report = import_rollouts(
        tmp_path / "out", "copy", name="r1", tokenizer=tiny_tokenizer("qwen3") if "tokens" not in lost else None,
        worker="thread",
    )  # fmt: skip
    assert not report.problems.counts
    copy = rt.open_store(project="copy")
    before, after = ledger_of(original), ledger_of(copy)
    kept = [uid is not None for uid in before.get("trace_uid")]
    assert (after.n_rows == sum(kept)) == ("rows that were no traces" in lost)
    compared = before if "rows that were no traces" not in lost else before.take(np.flatnonzero(kept))
    new = OF_THE_COPY | ({"sample"} if compared is not before else set())  # places in a group that lacks rows
    assert bool(differing(compared, after) - new) == ("ledger" in lost)
    assert sorted(compared.get("reward").tolist()) == pytest.approx(sorted(after.get("reward").tolist()))
    mine, theirs = read_back(original), read_back(copy)
    assert [(c, said) for c, said, _ in mine] == [(c, said) for c, said, _ in theirs]
    assert (mine != theirs) == ("tokens" in lost)


def read_back(store) -> list[tuple]:
    """Reward, conversation and tokens of every trace, in the order of their conversations."""
    found = []
    for row in store.query(order_by="step", limit=200).rows:
        tokens = store.transcript(row.id).tokens
        said = [
            (m["role"], m["content"].strip(), len(m.get("tool_calls", ()))) for m in store.messages(row.id)
        ]
        found.append(((row.step, round(row["reward"], 6)), said, tokens.input_ids.tolist()))
    return sorted(found, key=str)


BLOCKS = [
    {"role": "user", "content": "Weigh it."},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t1", "name": "weigh", "input": {"what": "gold"}}],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "the scale is out", "is_error": True}
        ],
    },
    {"role": "assistant", "content": "I cannot."},
]


@pytest.mark.parametrize("form", [form for form in WRITTEN_AND_READ if form not in ("atif", "sft", "reward")])
def test_a_result_whose_record_says_that_the_call_failed_stays_one(trackio_dir, tmp_path, form):
    """Seen once: `is_error` of Anthropic's results was dropped, and a failure in words of its own was none."""
    (tmp_path / "log.jsonl").write_bytes(orjson.dumps({"messages": BLOCKS, "reward": 0.0, "step": 1}))
    import_rollouts(tmp_path / "log.jsonl", "failing", name="r1", worker="thread")
    first = rt.open_store(project="failing")
    WRITTEN_AND_READ[form][0](first, tmp_path / "out")
    import_rollouts(tmp_path / "out", "again", name="r1", worker="thread")
    for store in (first, rt.open_store(project="again")):
        [row] = store.query(where="n_tool_errors = 1 and flags has tool_error").rows
        assert [turn.failed for turn in store.transcript(row.id).turns] == [False, False, True, False]
