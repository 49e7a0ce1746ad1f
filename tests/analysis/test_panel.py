"""Series side by side: their values, what a mix takes out of them, and panels put together."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.analysis.curves import Series, SeriesName
from rollout_traces.analysis.panel import ALONE, Panel, Parting, logged_panels, one_of, rows_of, stacked
from rollout_traces.analysis.run_rows import RowMeasure, RunRows

N_STEPS, GROUPS, SIZE = 20, 6, 4
N = N_STEPS * GROUPS * SIZE


def run(**parts: np.ndarray) -> RunRows:
    """Rows of twenty steps of six groups of four; parts by codes of one letter each."""
    named = {
        name: (np.asarray(codes), list("abcdefgh")[: int(np.max(codes)) + 1]) for name, codes in parts.items()
    }
    return RunRows(
        np.arange(N_STEPS),
        np.repeat(np.arange(N_STEPS), GROUPS * SIZE),
        np.repeat(np.arange(N // SIZE), SIZE),
        named,
        weight=np.ones(N),
    )


def measure(values: np.ndarray, name: str = "n_sampled", **more: object) -> RowMeasure:
    return RowMeasure(SeriesName(name), lambda: np.asarray(values, float), **more)


def noise(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(10, 1, N)


class TestOfAMeasure:
    def test_everything_and_each_part_have_the_means_of_their_rows(self):
        rows = run(engine=np.tile([0, 1], N // 2))
        values = noise()
        panel = Parting(rows).panel(measure(values))
        assert panel.parts[0] == () and len(panel.parts) == 3
        assert panel.levels[0] == pytest.approx(values.reshape(N_STEPS, -1).mean(axis=1))
        assert panel.levels[1] == pytest.approx(values[0::2].reshape(N_STEPS, -1).mean(axis=1))
        assert panel.rows[0].tolist() == [24.0] * N_STEPS and panel.rows[1].tolist() == [12.0] * N_STEPS
        assert panel.groups[0].tolist() == [6.0] * N_STEPS
        assert not panel.is_share and not panel.is_centred and panel.control[0] == 0

    def test_what_is_the_same_at_every_step_is_no_series(self):
        assert Parting(run()).panel(measure(np.full(N, 3.0))) is None
        assert Parting(run()).panel(measure(np.full(N, np.nan))) is None

    def test_its_own_column_parts_it_not(self):
        rows = run(engine=np.tile([0, 1], N // 2), source=np.repeat([0, 1], N // 2))
        of_engine = Parting(rows).panel(measure(np.tile([0.0, 1.0, 1.0, 1.0], N // 4) + noise(), "engine"))
        assert {part[0][0] for part in of_engine.parts if part} == {"source"}

    def test_a_part_of_very_few_rows_has_none(self):
        few = np.zeros(N, int)
        few[: int(ALONE * N)] = 1
        assert len(Parting(run(engine=few)).panel(measure(noise())).parts) == 2
        few[: int(ALONE * N) + 1] = 1
        assert len(Parting(run(engine=few)).panel(measure(noise())).parts) == 3

    def test_ones_and_zeros_are_a_share(self):
        hits = (noise() > 10).astype(float)
        panel = Parting(run()).panel(measure(hits))
        assert panel.is_share and np.all(panel.errors[0] > 0)

    def test_what_adds_up_to_nothing_in_every_step_is_centred(self):
        values = noise().reshape(-1, SIZE)
        centred = (values - values.mean(axis=1, keepdims=True)).ravel()
        assert Parting(run(engine=np.tile([0, 1], N // 2))).panel(measure(centred)).is_centred

    def test_rows_that_are_unknown_are_in_no_mean(self):
        values = noise()
        values[::2] = np.nan
        panel = Parting(run()).panel(measure(values))
        assert panel.rows[0].tolist() == [12.0] * N_STEPS
        assert panel.levels[0] == pytest.approx(np.nanmean(values.reshape(N_STEPS, -1), axis=1))


class TestAMix:
    def test_of_sources_is_taken_out_of_the_values_and_stays_in_the_levels(self):
        """One source has longer rollouts; of the later steps it has three quarters instead of one."""
        late = np.repeat(np.arange(N_STEPS), GROUPS * SIZE) >= 10
        place = np.tile(np.repeat(np.arange(GROUPS), SIZE), N_STEPS)
        source = np.where(late, place >= 1, place >= 4).astype(int)
        values = noise() + 20.0 * source
        panel = Parting(run(source=source)).panel(measure(values))
        everything = panel.values[0]
        assert panel.levels[0][10:].mean() - panel.levels[0][:10].mean() > 8
        assert abs(everything[10:].mean() - everything[:10].mean()) < 1
        assert everything.mean() == pytest.approx(values.mean(), abs=0.5)

    def test_of_sources_that_some_rows_do_not_know_stays(self):
        source = np.repeat([0, 1], N // 2)
        source[3] = -1
        values = noise() + 20.0 * (source == 1)
        everything = Parting(run(source=source)).panel(measure(values)).values[0]
        assert everything[10:].mean() - everything[:10].mean() > 15

    def test_of_prompts_is_taken_out_where_every_step_asks_the_same(self):
        rows = run()
        rows.prompt = np.tile(np.repeat(np.arange(GROUPS), SIZE), N_STEPS)
        values = noise() + 2.0 * rows.prompt
        panel = Parting(rows).panel(measure(values))
        plain = Parting(run()).panel(measure(values))
        assert panel.values[0] == pytest.approx(plain.values[0])
        assert panel.errors[0].mean() < plain.errors[0].mean() / 4, "how prompts differ is no error then"


class TestLogged:
    def series(self, values: list[float], name: str = "loss", steps: int = 4) -> Series:
        return Series(SeriesName(name), (), np.arange(steps), np.asarray(values, float), np.empty(0))

    def test_those_over_the_same_steps_are_one_panel(self):
        panels = logged_panels(
            [self.series([1, 2, 3, 4]), self.series([1, 2, 3, 5], "lr"), self.series([1, 2], "kl", 2)]
        )
        assert [[str(name) for name in panel.names] for panel in panels] == [["loss", "lr"], ["kl"]]
        assert isinstance(panels[0], Panel) and panels[0].rows.tolist() == [[1.0] * 4] * 2

    def test_one_that_grows_tenfold_is_looked_at_as_its_logarithm(self):
        (panel,) = logged_panels(
            [self.series([1, 2, 3, 10]), self.series([1, 2, 3, 11]), self.series([-1, 2, 3, 40])]
        )
        assert panel.values[0].tolist() == [1, 2, 3, 10] and panel.values[2].tolist() == [-1, 2, 3, 40]
        assert panel.values[1] == pytest.approx(np.log([1, 2, 3, 11]))
        assert panel.levels[1].tolist() == [1, 2, 3, 11]

    def test_what_is_not_finite_is_unknown(self):
        (panel,) = logged_panels([self.series([1, np.inf, 3, 4])])
        assert np.isnan(panel.values[0]).tolist() == [False, True, False, False]

    def test_some_of_a_panel_and_panels_put_together(self):
        (panel,) = logged_panels([self.series([1, 2, 3, 4], name) for name in "abc"])
        some = one_of(panel, [2, 0])
        assert [str(name) for name in some.names] == ["c", "a"] and some.values.shape == (2, 4)
        both = stacked([some, panel])
        assert [str(name) for name in both.names] == ["c", "a", "a", "b", "c"] and both.errors.shape == (5, 4)


def test_rows_of_a_part_have_one_of_its_values_in_each_column():
    rows = run(engine=np.tile([0, 1, 2, 0], N // 4), source=np.tile([0, 1], N // 2))
    assert rows_of(rows, ()).all()
    held = rows_of(rows, (("engine", "a"), ("engine", "c"), ("source", "a")))
    assert held[:4].tolist() == [True, False, True, False]
