"""What is wrapped of AReaL's trainer."""

from __future__ import annotations

from types import SimpleNamespace

from rollout_traces.integrations.areal import _ArealObserver


def test_advantages_are_watched_once_however_often_that_is_asked_for():
    config = SimpleNamespace(stats_logger=SimpleNamespace(trackio=None))
    actor = SimpleNamespace(compute_advantages=lambda batch: batch)
    observer = _ArealObserver("areal", SimpleNamespace(config=config, actor=actor), None, {})
    assert not observer.joins
    observer.join_advantages()
    watched = actor.compute_advantages
    assert observer.joins and watched([1]) == [1]
    observer.join_advantages()
    assert actor.compute_advantages is watched
