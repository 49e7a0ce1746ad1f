"""Records of what the trainer dropped."""

from __future__ import annotations

from rollout_traces.ledger.build import build_ledger
from rollout_traces.steps.discarded import filter_summary, filtered_trajectories, running_totals
from tests.builders import make_packed_batch, make_transcript
from tests.metrics.builders import make_ledger


def step_of(lengths: list[int], reasons: list[str | None]):
    rows = [[5] * n for n in lengths]
    batch = make_packed_batch(
        rows, [[0] + [1] * (n - 1) for n in lengths], row_lists={"discard_reasons": reasons}
    )
    return batch, build_ledger(batch)


def test_a_dropped_rollout_has_a_record_with_its_reason_and_counts():
    batch, ledger = step_of([4, 9], [None, "too_long"])
    transcript = make_transcript(
        [
            ("user", "First line\nsecond\x1b[31m line " + "x" * 200),
            ("assistant", "a"),
            ("tool", "1"),
            ("assistant", "b"),
        ]
    )
    (record,) = filtered_trajectories(batch, ledger, {1: transcript})
    assert (record["uid"], record["reason"], record["n_tokens"]) == ("0123456789ab-1", "too_long", 9)
    assert (record["n_messages"], record["n_assistant_turns"], record["n_tool_results"]) == (4, 1, 1)
    assert (
        record["prompt_preview"].startswith("First line\\nsecond\\x1b[31m line")
        and "\n" not in record["prompt_preview"]
    )
    assert len(record["prompt_preview"]) <= 130


def test_what_was_not_decoded_has_no_preview_and_no_made_up_counts():
    batch, ledger = step_of([4], ["canceled"])
    (record,) = filtered_trajectories(batch, ledger)
    assert (
        record["prompt_preview"] is None and record["n_messages"] is None and record["n_assistant_turns"] == 1
    )


def test_without_a_users_turn_the_preview_is_what_the_policy_was_given():
    batch, ledger = step_of([4], ["canceled"])
    transcript = make_transcript([("system", "Be brief."), ("assistant", "Yes.")])
    (record,) = filtered_trajectories(batch, ledger, {0: transcript})
    assert "Be brief." in record["prompt_preview"] and "Yes." not in record["prompt_preview"]


def test_a_step_is_summed_up():
    lengths = [10, 20, 30, 40, 50, 60, 5]
    batch, ledger = step_of(lengths, ["too_long"] * 5 + ["max_async", None])
    summary = filter_summary(batch, filtered_trajectories(batch, ledger))
    assert (summary["total"], summary["kept"], summary["filtered"]) == (7, 1, 6)
    assert summary["by_reason"] == {"too_long": 5, "max_async": 1}
    assert summary["tokens"] == {"min": 10.0, "p50": 35.0, "p90": 55.0, "max": 60.0}
    assert [record["n_tokens"] for record in summary["longest"]] == [60, 50, 40, 30, 20]


def test_a_step_that_dropped_nothing():
    batch, ledger = step_of([3], [None])
    summary = filter_summary(batch, filtered_trajectories(batch, ledger))
    assert summary["filtered"] == 0 and summary["tokens"] == {} and summary["longest"] == []


def test_totals_run_over_steps_and_splits_apart():
    totals = running_totals({}, make_ledger(discard_reason=["too_long", None]), "rollout")
    totals |= running_totals(totals, make_ledger(discard_reason=[None]), "eval-rollout")
    found = running_totals(totals, make_ledger(discard_reason=["too_long", "canceled", None]), "rollout")
    assert found == {
        "rollout/total/samples": 5.0,
        "rollout/total/discarded": 3.0,
        "rollout/total/discarded_too_long": 2.0,
        "rollout/total/discarded_canceled": 1.0,
    }


def test_totals_go_on_from_what_was_stored():
    stored = {
        "rollout/total/samples": 5.0,
        "rollout/total/discarded": 2.0,
        "rollout/total/discarded_too_long": 2.0,
    }
    found = running_totals(stored, make_ledger(discard_reason=["too_long", None]), "rollout")
    assert found["rollout/total/samples"] == 7.0
    assert found["rollout/total/discarded"] == 3.0
    again = running_totals(found, make_ledger(discard_reason=[None]), "rollout")
    assert again["rollout/total/discarded_too_long"] == 3.0
