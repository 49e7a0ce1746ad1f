from __future__ import annotations

import numpy as np

from rollout_traces.analysis.share_changes import FEWEST_STEPS, begins


class TestBegins:
    def test_a_share_that_is_suddenly_large_begins_at_its_step(self):
        n = np.repeat([0.0, 30.0], 10)
        place, gain = begins(n, np.full(20, 60.0))
        assert place == 10 and gain > 25

    def test_a_constant_share_begins_nowhere(self):
        assert begins(np.full(20, 30.0), np.full(20, 60.0))[0] is None

    def test_too_few_steps_to_tell_are_no_error(self):
        for n_steps in range(1, 2 * FEWEST_STEPS):
            assert begins(np.ones(n_steps), np.full(n_steps, 60.0)) == (None, 0.0)
