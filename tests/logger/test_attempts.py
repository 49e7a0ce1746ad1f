"""An attempt begins when a run starts again or goes back, and with nothing else."""

from __future__ import annotations

from rollout_traces.logger.attempts import Attempts, attempts_of, now


def log(attempts: Attempts, *steps: int, split: str = "rollout", announced: bool = False) -> list[str]:
    return [attempts.note_rollouts(step, split, announced=announced) for step in steps]


class TestSteps:
    def test_steps_that_go_on_stay_in_one_attempt(self):
        assert len(set(log(Attempts("t"), 1, 1, 2, 3, 3, 7))) == 1

    def test_a_step_that_goes_back_begins_one_and_its_id_sorts_after(self):
        ids = log(Attempts("t"), 1, 2, 3, 4, 1, 2)
        assert ids[:4] == ["t-001"] * 4
        assert ids[4:] == ["t-002"] * 2
        assert ids == sorted(ids)

    def test_rollouts_of_the_step_before_are_late_and_begin_none(self):
        assert len(set(log(Attempts("t"), 1, 2, 1, 3))) == 1

    def test_splits_are_counted_apart(self):
        attempts = Attempts("t")
        log(attempts, 8, 9)
        assert log(attempts, 4, split="eval-rollout") == ["t-001"]

    def test_an_open_step_of_a_trainer_that_announces_closes_can_be_far_behind(self):
        attempts = Attempts("t")
        log(attempts, 1, 2, 3, 4, 5, 6, announced=True)
        attempts.note_close(1, "rollout")
        assert log(attempts, 2, announced=True) == ["t-001"]
        assert log(attempts, 1, announced=True) == ["t-002"]

    def test_what_is_begun_by_hand_is_one(self):
        attempts = Attempts("t")
        first = log(attempts, 5)[0]
        attempts.begin()
        assert log(attempts, 5)[0] > first


class TestSharing:
    def test_a_second_logger_of_the_process_shares_the_attempt(self):
        assert attempts_of("run-shared") is attempts_of("run-shared")
        assert attempts_of("run-shared") is not attempts_of("run-other")

    def test_every_rank_makes_the_same_ids(self):
        started = now()
        one, two = (attempts_of(f"run-of-rank-{rank}", started) for rank in range(2))
        assert log(one, 3, 4, 5, 1) == log(two, 3, 4, 5, 1)
