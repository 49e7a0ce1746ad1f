"""The stats tracker: what it exports, alone, over ranks, and beside AReaL's."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rollout_traces import stats_tracker
from rollout_traces.stats.tracker import Export, ReduceType, StatsTracker, merge_exports


def mask(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


def floats(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def training_step(module: ModuleType, tracker) -> dict[str, float]:
    """What a trainer written against AReaL's tracker does in a step of two micro-batches."""
    for shift in (0.0, 10.0):
        tracker.denominator(n_tokens=mask(1, 1, 0, 1), n_seqs=mask(1, 0, 0, 0), nobody=mask(0, 0, 0, 0))
        with tracker.scope("actor"):
            tracker.denominator(n_valid=mask(0, 1, 1, 0))
            tracker.stat("n_valid", loss=floats(9, 1, 3, 9) + shift)
            with tracker.scope("/inner/"):
                tracker.scalar(lr=0.5 + shift)
        tracker.stat("n_tokens", module.ReduceType.AVG, entropy=floats(1, 2, 99, 3) + shift)
        tracker.stat("n_tokens", module.ReduceType.SUM, reward=floats(1, 2, 99, 3))
        tracker.stat("n_tokens", module.ReduceType.MIN, low=floats(1, 2, -99, 3) - shift)
        tracker.stat("n_tokens", module.ReduceType.MAX, high=floats(1, 2, 99, 3) + shift)
        tracker.stat("nobody", unseen=floats(1, 2, 3, 4))
        tracker.scalar(grad_norm=2.0 + shift)

    @tracker.scope_func_wrapper("wrapped")
    def update() -> None:
        tracker.scalar(n=1)
        with tracker.disable_scope():
            tracker.scalar(outside=4)

    update()
    with tracker.scope("ignored"), tracker.record_timing("update"):
        pass
    return tracker.export()


EXPECTED = {
    "n_tokens": 6.0,
    "n_seqs": 2.0,
    "nobody": 0.0,
    "actor/n_valid": 4.0,
    "actor/loss/avg": 7.0,
    "actor/loss/min": 1.0,
    "actor/loss/max": 13.0,
    "actor/inner/lr": 5.5,
    "actor/inner/lr__count": 2,
    "entropy": 7.0,
    "reward": 12.0,
    "low": -9.0,
    "high": 13.0,
    "grad_norm": 7.0,
    "grad_norm__count": 2,
    "wrapped/n": 1.0,
    "wrapped/n__count": 1,
    "outside": 4.0,
    "outside__count": 1,
    "timeperf/update__count": 1,
    # nothing was under the mask of `unseen`, so it has no keys
}


def test_every_reduce_type_gives_what_was_worked_out_by_hand():
    exported = training_step(stats_tracker, StatsTracker())
    assert exported.pop("timeperf/update") >= 0
    assert exported == pytest.approx(EXPECTED)


@pytest.mark.trainers
def test_the_same_script_gives_the_same_export_with_areals_own_tracker():
    areal = importlib.import_module("areal.utils.stats_tracker")
    theirs = training_step(areal, areal.DistributedStatsTracker("rollout"))
    ours = training_step(stats_tracker, StatsTracker("rollout"))
    for exported in (theirs, ours):
        assert exported.pop("timeperf/update") >= 0
    assert ours == pytest.approx(theirs)


class TestExport:
    def test_a_second_export_is_empty_because_the_first_one_reset(self):
        tracker = StatsTracker()
        tracker.scalar(a=1)
        assert tracker.export() and tracker.export() == {}

    def test_without_reset_the_same_comes_again(self):
        tracker = StatsTracker()
        tracker.scalar(a=1)
        assert tracker.export(reset=False) == tracker.export()

    def test_one_key_can_be_exported_and_leaves_the_others(self):
        tracker = StatsTracker("eval")
        tracker.scalar(a=1, b=2)
        assert tracker.export("a") == {"eval/a": 1.0, "eval/a__count": 1}
        assert set(tracker.export()) == {"eval/b", "eval/b__count"}

    def test_the_tensors_may_change_after_they_were_recorded(self):
        tracker, values, tokens = StatsTracker(), floats(1, 3), mask(1, 1)
        tracker.denominator(n=tokens)
        tracker.stat("n", ReduceType.AVG, x=values)
        values.zero_()
        tokens.zero_()
        assert tracker.export() == {"n": 2.0, "x": 2.0}

    def test_a_mask_is_used_again_when_there_are_more_tensors_than_masks(self):
        tracker = StatsTracker()
        tracker.denominator(n=mask(1, 0))
        tracker.stat("n", ReduceType.AVG, x=floats(1, 50))
        tracker.stat("n", ReduceType.AVG, x=floats(3, 50))
        assert tracker.export()["x"] == 2.0

    def test_the_token_sum_of_long_sequences_keeps_its_precision(self):
        tracker = StatsTracker()
        tracker.denominator(n=torch.ones(3_000_000, dtype=torch.bool))
        tracker.stat("n", ReduceType.SUM, x=torch.full((3_000_000,), 0.1))
        assert tracker.export()["x"] == pytest.approx(3_000_000 * float(torch.tensor(0.1)), rel=1e-12)


class TestScopes:
    def test_a_scope_of_one_thread_does_not_reach_into_another(self):
        tracker = StatsTracker()
        with tracker.scope("outer"):
            other = threading.Thread(target=lambda: tracker.scalar(elsewhere=1))
            other.start()
            other.join()
        assert "elsewhere" in tracker.export()

    def test_a_scope_ends_when_its_body_raises(self):
        tracker = StatsTracker()
        with pytest.raises(KeyError), tracker.scope("broken"):
            raise KeyError
        tracker.scalar(a=1)
        assert "a" in tracker.export()


class TestErrorsNameTheKeyWhatWasSeenAndWhatWasExpected:
    def test_a_mask_that_is_not_bool(self):
        with pytest.raises(ValueError, match=r"`n_tokens`.*shape \(2,\).*int64.*bool tensor"):
            StatsTracker().denominator(n_tokens=torch.tensor([1, 0]))

    def test_an_empty_mask(self):
        with pytest.raises(ValueError, match=r"`n`.*shape \(0,\).*not be empty"):
            StatsTracker().denominator(n=mask())

    def test_a_missing_denominator(self):
        tracker = StatsTracker()
        tracker.denominator(other=mask(1))
        with pytest.raises(ValueError, match=r"`loss`.*denominator `n` does not exist.*`other`"):
            tracker.stat("n", loss=floats(1))

    def test_values_that_are_not_floats(self):
        tracker = StatsTracker()
        tracker.denominator(n=mask(1))
        with pytest.raises(ValueError, match=r"`loss`.*int64.*float tensor"):
            tracker.stat("n", loss=torch.tensor([1]))

    def test_unequal_shapes(self):
        tracker = StatsTracker()
        tracker.denominator(n=mask(1, 1))
        with pytest.raises(ValueError, match=r"`loss`.*\(3,\).*`n`.*\(2,\).*equal shapes"):
            tracker.stat("n", loss=floats(1, 2, 3))

    def test_scalar_is_refused_for_tensors(self):
        tracker = StatsTracker()
        tracker.denominator(n=mask(1))
        with pytest.raises(ValueError, match=r"`loss`.*SCALAR"):
            tracker.stat("n", ReduceType.SCALAR, loss=floats(1))

    def test_a_refused_tensor_leaves_no_trace(self):
        tracker = StatsTracker()
        tracker.denominator(n=mask(1, 1))
        with pytest.raises(ValueError):
            tracker.stat("n", loss=floats(1, 2, 3))
        assert tracker.export() == {"n": 2.0}


class TestNamedTrackers:
    @pytest.fixture(autouse=True)
    def clean(self):
        yield
        stats_tracker.export_all()
        for name in [name for name in stats_tracker.TRACKERS if name]:
            del stats_tracker.TRACKERS[name]

    def test_a_name_stands_before_its_keys_and_all_are_exported_together(self):
        stats_tracker.get("rollout").scalar(reward=1)
        stats_tracker.get("eval-rollout").scalar(reward=0)
        stats_tracker.scalar(loss=3)
        exported = stats_tracker.export_all()
        assert {k: v for k, v in exported.items() if "__count" not in k} == {
            "rollout/reward": 1.0,
            "eval-rollout/reward": 0.0,
            "loss": 3.0,
        }

    def test_asking_twice_gives_the_same_tracker(self):
        assert stats_tracker.get("rollout") is stats_tracker.get("rollout")
        assert stats_tracker.get() is stats_tracker.DEFAULT_TRACKER

    def test_a_key_of_two_trackers_is_reported(self, caplog):
        stats_tracker.get("rollout").scalar(reward=1)
        with stats_tracker.scope("rollout"):
            stats_tracker.scalar(reward=5)
        stats_tracker.export_all()
        assert "rollout/reward" in caplog.text


class TestMergingWorkers:
    def test_counted_keys_merge_by_their_counts(self):
        merged = merge_exports([{"r": 1.0, "r__count": 3}, {"r": 5.0, "r__count": 1}])
        assert merged == {"r": 2.0, "r__count": 4}

    def test_keys_without_a_count_are_not_lost(self):
        parts = []
        for low, n in ((1.0, 1), (3.0, 3)):
            tracker = StatsTracker()
            tracker.denominator(n=torch.ones(n, dtype=torch.bool))
            tracker.stat("n", x=torch.full((n,), low))
            tracker.stat("n", ReduceType.AVG, mean=torch.full((n,), low))
            parts.append(tracker.export())
        expected = {"n": 4.0, "x/avg": 2.5, "x/min": 1.0, "x/max": 3.0, "mean": 2.5}
        assert merge_exports(parts) == expected

    def test_the_types_survive_pickling_and_copying(self):
        tracker = StatsTracker()
        tracker.denominator(n=mask(1, 1))
        exported = tracker.export()
        for sent in (pickle.loads(pickle.dumps(exported)), copy.deepcopy(exported)):
            assert merge_exports([sent, exported]) == {"n": 4.0}

    def test_plain_dicts_merge_by_the_ends_of_their_keys(self):
        merged = merge_exports(
            [{"a/min": 1.0, "a/max": 2.0, "b": 1.0}, {"a/min": 0.0, "a/max": 5.0, "b": 3.0}]
        )
        assert merged == {"a/min": 0.0, "a/max": 5.0, "b": 2.0}

    def test_merging_twice_weighs_as_merging_once(self):
        one, two, three = ({"r": value, "r__count": 1} for value in (1.0, 2.0, 6.0))
        assert merge_exports([merge_exports([one, two]), three]) == merge_exports([one, two, three])

    def test_a_worker_with_a_count_of_zero_changes_nothing(self):
        assert merge_exports([Export({"r": 2.0, "r__count": 2}), {"r": 0.0, "r__count": 0}])["r"] == 2.0


class TestNaN:
    @pytest.mark.parametrize("at", [0, 1])
    def test_nan_of_any_micro_batch_is_exported(self, at):
        tracker = StatsTracker()
        for number in range(2):
            tracker.denominator(n=mask(1, 1))
            tracker.stat("n", loss=floats(1.0, float("nan") if number == at else 2.0))
        assert all(math.isnan(value) for key, value in tracker.export().items() if key != "n")

    def test_nan_outside_the_mask_is_not_looked_at(self):
        tracker = StatsTracker()
        tracker.denominator(n=mask(1, 0))
        tracker.stat("n", loss=floats(1.0, float("nan")))
        assert tracker.export() == {"n": 1.0, "loss/avg": 1.0, "loss/min": 1.0, "loss/max": 1.0}

    def test_an_infinite_value_is_not_taken_for_none(self):
        tracker = StatsTracker()
        tracker.denominator(n=mask(1))
        tracker.stat("n", ReduceType.MAX, loss=floats(float("inf")))
        assert tracker.export()["loss"] == float("inf")

    @pytest.mark.parametrize("order", [1, -1])
    def test_nan_of_one_worker_is_nan_of_all(self, order):
        parts = [{"loss/min": 1.0, "loss/max": 1.0}, {"loss/min": float("nan"), "loss/max": float("nan")}]
        assert all(math.isnan(value) for value in merge_exports(parts[::order]).values())


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=_timeout()
    )
    try:
        tracker = stats_tracker.get("rollout")
        tracker.denominator(n=torch.ones(1 + rank, dtype=torch.bool))
        tracker.stat("n", loss=torch.full((1 + rank,), float(rank)))
        tracker.scalar(reward=float(rank))
        if rank == 1:
            tracker.denominator(only=mask(1, 0))
            tracker.stat("only", ReduceType.MAX, late=floats(7, 99))
            tracker.stat("only", ReduceType.MIN, broken=floats(float("nan"), 0))
            stats_tracker.get("eval-rollout").scalar(score=4)
        torch.save(dict(stats_tracker.export_all(reduce_group=dist.group.WORLD)), f"{folder}/{rank}.pt")
        alone = [dist.new_group([0]), dist.new_group([1])][rank]
        mine = StatsTracker()
        mine.scalar(**{"first" if rank == 0 else "last": 1.0})
        exported = mine.export(reduce_group=alone, key_sync_group=dist.group.WORLD)
        Path(f"{folder}/{rank}.keys").write_text(",".join(exported))
        stats_tracker.scalar(kind=1) if rank else stats_tracker.denominator(kind=mask(1))
        try:
            stats_tracker.export_all(reduce_group=dist.group.WORLD)
        except ValueError as error:
            Path(f"{folder}/{rank}.error").write_text(str(error))
    finally:
        dist.destroy_process_group()


def _timeout():
    import datetime

    return datetime.timedelta(seconds=60)


class TestTwoRanks:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("ranks")
        mp.spawn(_rank, args=(str(folder),), nprocs=2)
        return folder

    def test_both_ranks_get_the_same_also_for_keys_that_one_has(self, folder: Path):
        first, second = (torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2))
        assert math.isnan(first.pop("rollout/broken")) and math.isnan(second.pop("rollout/broken"))
        assert first == second
        assert first == {
            "rollout/n": 3.0,
            "rollout/loss/avg": pytest.approx(2 / 3),
            "rollout/loss/min": 0.0,
            "rollout/loss/max": 1.0,
            "rollout/reward": 0.5,
            "rollout/reward__count": 2,
            "rollout/only": 1.0,
            "rollout/late": 7.0,
            "eval-rollout/score": 4.0,
            "eval-rollout/score__count": 1,
        }

    def test_keys_are_agreed_on_in_a_larger_group_than_values_are_reduced_in(self, folder: Path):
        assert (folder / "0.keys").read_text() == "first,first__count"
        assert (folder / "1.keys").read_text() == "last,last__count"

    def test_a_key_of_two_reduce_types_is_an_error_on_both_ranks_and_no_deadlock(self, folder: Path):
        for rank in range(2):
            assert "`kind`" in (folder / f"{rank}.error").read_text()


def test_the_module_is_imported_without_torch():
    import subprocess
    import sys

    code = "import sys, rollout_traces.stats.tracker as s; s.scalar(a=1); s.export_all(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
