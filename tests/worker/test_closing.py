"""When a step is closed, told without a clock, a spool or a store."""

from __future__ import annotations

import pytest

from rollout_traces.model.packed_batch import StepKey
from rollout_traces.worker.closing import FLUSH_PATIENCE, RANK_PATIENCE, CloseRules, Handed

ONE, TWO, THREE = (StepKey("a", step, "rollout") for step in (1, 2, 3))
QUIET, JOIN = 60.0, 600.0


class Spools:
    """Rules, the spools that are alive, and a clock that only moves when told to."""

    def __init__(self, *living: str, quiet: float = QUIET) -> None:
        self.rules = CloseRules(quiet, JOIN)
        self.living = set(living or ("a",))
        self.now = 0.0
        self.awaiting: set[StepKey] = set()

    def rollouts(self, key: StepKey, spool: str = "a", **details) -> None:
        self.rules.rollouts(Handed(key, spool, **details), self.now)

    def due(self, after: float = 0.0) -> list[tuple[int, str]]:
        self.now += after
        ranks = {spool for spool in self.living if spool.startswith("rank")}
        found = self.rules.due(self.now, self.living, ranks, self.awaiting.__contains__)
        return [(due.key.step, due.why) for due in found]


@pytest.fixture
def spools() -> Spools:
    return Spools()


class TestOneSpool:
    def test_a_step_stays_open_while_its_rollouts_come(self, spools):
        for _ in range(5):
            spools.rollouts(ONE)
            assert spools.due(after=QUIET / 2) == []

    def test_its_trainer_closes_it(self, spools):
        spools.rollouts(ONE)
        spools.rules.announce(ONE, "a")
        assert spools.due() == [(1, "announced")]

    def test_the_next_steps_first_rollouts_close_it(self, spools):
        spools.rollouts(ONE)
        spools.rollouts(TWO)
        assert spools.due() == [(1, "next step")]

    def test_those_of_another_split_do_not(self, spools):
        spools.rollouts(ONE)
        spools.rollouts(StepKey("a", 2, "eval-rollout"))
        assert spools.due() == []

    def test_a_flush_closes_all_of_its_spool(self, spools):
        spools.rollouts(ONE, announced=True)
        spools.rollouts(TWO, announced=True)
        spools.rules.flush("a")
        assert spools.due() == [(1, "flush"), (2, "flush")]

    def test_rollouts_after_the_flush_open_it_again(self, spools):
        spools.rollouts(ONE)
        spools.rules.flush("a")
        spools.rollouts(ONE)
        assert spools.due() == []

    def test_a_writer_that_is_gone_closes_it(self, spools):
        spools.rollouts(ONE, announced=True)
        spools.living.clear()
        assert spools.due() == [(1, "gone")]

    def test_a_newer_attempt_closes_the_steps_of_the_older_one(self, spools):
        spools.rollouts(THREE)
        spools.rollouts(StepKey("b", 1, "rollout"))
        assert spools.due() == [(3, "attempt")]


class TestQuietTime:
    def test_closes_a_step_that_nobody_closes(self, spools):
        spools.rollouts(ONE)
        assert spools.due(after=QUIET - 1) == []
        assert spools.due(after=1) == [(1, "quiet")]

    def test_is_at_least_three_times_the_longest_pause_within_a_step(self, spools):
        spools.rollouts(ONE)
        spools.now += 50
        spools.rollouts(ONE)
        assert spools.due(after=149) == []
        assert spools.due(after=1) == [(1, "quiet")]

    def test_is_off_where_closes_are_announced(self, spools):
        spools.rollouts(ONE, announced=True)
        assert spools.due(after=10 * QUIET) == []

    def test_is_off_once_a_close_was_announced(self, spools):
        spools.rollouts(ONE)
        spools.rules.announce(ONE, "a")
        spools.rules.closed(ONE)
        spools.rollouts(TWO)
        assert spools.due(after=10 * QUIET) == []

    def test_of_zero_never_closes(self):
        spools = Spools(quiet=0)
        spools.rollouts(ONE)
        assert spools.due(after=1e6) == []


class TestOverlappingSteps:
    def test_a_step_that_is_held_open_is_not_closed_by_later_ones(self, spools):
        for key in (ONE, TWO, THREE):
            spools.rollouts(key, announced=True)
        spools.rules.announce(TWO, "a")
        assert spools.due() == [(2, "announced")]


class TestLateParts:
    def test_are_gathered_until_a_new_step_begins(self, spools):
        spools.rollouts(TWO)
        spools.rules.closed(ONE)
        late = ONE._replace(late=1)
        spools.rollouts(late)
        assert spools.rules.open_key(ONE) == late
        assert spools.due() == []
        spools.rollouts(THREE)
        assert spools.due() == [(1, "next step"), (2, "next step")]

    def test_of_a_trainer_that_announces_closes_end_by_the_quiet_time(self, spools):
        spools.rollouts(ONE._replace(late=1), announced=True)
        assert spools.due(after=QUIET) == [(1, "quiet")]


class TestJoins:
    def test_a_step_that_awaits_them_is_not_closed(self, spools):
        spools.rollouts(ONE)
        spools.awaiting.add(ONE)
        spools.rules.announce(ONE, "a")
        assert spools.due() == []
        spools.awaiting.clear()
        assert spools.due() == [(1, "announced")]

    def test_a_limit_ends_the_waiting(self, spools):
        spools.rollouts(ONE)
        spools.awaiting.add(ONE)
        spools.rules.announce(ONE, "a")
        spools.due()
        assert spools.due(after=JOIN) == [(1, "announced")]

    def test_a_later_step_that_is_due_ends_it_too(self, spools):
        spools.rollouts(ONE)
        spools.awaiting.add(ONE)
        spools.rollouts(TWO)
        assert spools.due() == []
        spools.rollouts(THREE)
        assert (2, "next step") in spools.due()
        assert (1, "next step") in spools.due()

    def test_a_flush_waits_for_none(self, spools):
        spools.rollouts(ONE)
        spools.awaiting.add(ONE)
        spools.rules.flush("a")
        assert spools.due() == [(1, "flush")]


class TestRanks:
    @pytest.fixture
    def ranks(self) -> Spools:
        return Spools("rank-0", "rank-1")

    def test_a_step_is_closed_when_all_ranks_have_announced_it(self, ranks):
        for rank in ("rank-0", "rank-1"):
            ranks.rollouts(ONE, rank, n_ranks=2, announced=True)
        ranks.rules.announce(ONE, "rank-0")
        assert ranks.due(after=1e4) == []
        ranks.rules.announce(ONE, "rank-1")
        assert ranks.due() == [(1, "announced")]

    def test_a_rank_that_is_lost_is_not_waited_for(self, ranks):
        ranks.rollouts(ONE, "rank-0", n_ranks=2, announced=True)
        ranks.rules.announce(ONE, "rank-0")
        assert ranks.due(after=1e4) == []
        ranks.living.discard("rank-1")
        assert ranks.due() == [(1, "announced")]

    def test_a_rank_that_goes_on_waits_for_the_others_for_a_while(self, ranks):
        ranks.rollouts(ONE, "rank-0", n_ranks=2)
        ranks.rollouts(TWO, "rank-0", n_ranks=2)
        assert ranks.due() == []
        assert ranks.due(after=RANK_PATIENCE) == [(1, "rank silent")]

    def test_a_rank_that_waits_in_flush_waits_shorter(self, ranks):
        ranks.rollouts(ONE, "rank-0", n_ranks=2)
        ranks.rules.flush("rank-0")
        assert ranks.due() == []
        assert ranks.due(after=FLUSH_PATIENCE) == [(1, "flush")]

    def test_a_rank_without_rollouts_that_announced_a_later_step_is_done(self, ranks):
        ranks.rollouts(ONE, "rank-0", n_ranks=2, announced=True)
        ranks.rules.announce(ONE, "rank-0")
        ranks.rules.announce(TWO, "rank-1")
        assert ranks.due() == [(1, "announced")]


def test_two_loggers_of_one_run_are_waited_for_where_both_take_part():
    spools = Spools("a", "b")
    spools.rollouts(ONE, "a")
    spools.rollouts(ONE, "b")
    spools.rollouts(TWO, "a")
    assert spools.due() == []
    spools.rollouts(TWO, "b")
    assert spools.due() == [(1, "next step")]
