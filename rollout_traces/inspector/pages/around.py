"""Answers on what belongs to a rollout beside its text: its step and group for overlays, images, raw record, viewers of one's own."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import Number
from rollout_traces.inspector.viewers import LARGEST, Viewed, Viewer, installed_viewers
from rollout_traces.inspector.workspace import InParts, ProjectView, SplitView, seen
from rollout_traces.ledger.columns import NULL_INT
from rollout_traces.model.text import encodable
from rollout_traces.trace.conversion import TraceRecord, read_transcript
from rollout_traces.trace.images import MEDIA_TYPES, image_suffix


@dataclass(frozen=True)
class StepMeans:
    """Means over the sampled tokens of all rollouts of a step, each None where the ledger has none.

    Attributes:
        advantage: of the advantage.
        logprob: of the rollout logprob, nats.
        n_rows: rollouts.
    """

    advantage: Number
    logprob: Number
    n_rows: int


@dataclass(frozen=True)
class GroupPushes(InParts):
    """The push of a group's kept rollouts on each token id.

    Attributes:
        ids: the token ids, ascending.
        up: sum of the positive advantages over the loss tokens of each id.
        down: the same of the negative ones, without their sign.
        n_kept: rollouts that were read.
        n_rollouts: rollouts of the group.
    """

    ids: list[int]
    up: list[float]
    down: list[float]
    n_kept: int
    n_rollouts: int


def step_means(view: SplitView, step: int) -> StepMeans:
    """Means over the sampled tokens of a step, which overlays compare a rollout with."""
    ledger = view.store.ledger_rows(view.run, view.split, steps=(step, step))
    sampled = ledger.get("n_sampled")
    weights = np.where(sampled == NULL_INT, 0, sampled).astype(np.float64)
    return StepMeans(
        _weighted(ledger.get("advantage"), weights),
        _weighted(ledger.get("mean_logprob"), weights),
        ledger.n_rows,
    )


def group_pushes(view: SplitView, step: int, group: int) -> GroupPushes:
    """Adds up what the kept rollouts of a group do to each token id.

    Raises:
        StoreError: the group is not known, or no kept rollout of it has advantages.
    """
    groups = view.groups(step).groups
    found = next((each for each in groups if each.group == group), None)
    if found is None:
        raise StoreError("This rollout belongs to no group, so nothing can cancel in it.")
    kept = [_pushes(view.store.record(row.id)) for row in found.traces if row.id is not None]
    pushes = [each for each in kept if each is not None]
    if not pushes:
        raise StoreError("No kept rollout of this group has advantages.")
    known, places = np.unique(np.concatenate([ids for ids, _ in pushes]), return_inverse=True)
    pushed = np.concatenate([advantages for _, advantages in pushes])
    up, down = (
        np.bincount(places, np.maximum(sign * pushed, 0), len(known)).astype(np.float32) for sign in (1, -1)
    )
    return GroupPushes(known.tolist(), up.tolist(), down.tolist(), len(pushes), found.n_rollouts)


def _pushes(record: TraceRecord) -> tuple[np.ndarray, np.ndarray] | None:
    """Ids and advantages of a rollout's loss tokens; None where it has no advantages."""
    transcript = read_transcript(record)
    if transcript is None:
        return None
    tokens = transcript.tokens
    in_loss = tokens.loss_mask.astype(bool)
    whole = record.metadata.get("advantage")
    if "advantages" in tokens.tracks:
        advantages = np.nan_to_num(tokens.tracks["advantages"][in_loss].astype(np.float64))
    elif isinstance(whole, (int, float)):
        advantages = np.full(int(in_loss.sum()), float(whole))
    else:
        return None
    return tokens.input_ids[in_loss], advantages


def _weighted(values: np.ndarray, weights: np.ndarray) -> Number:
    known = np.isfinite(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None


@dataclass(frozen=True)
class ImageAnswer:
    """An image of a rollout: its media type, and its bytes in base64."""

    type: str
    data: str


def image(view: ProjectView, id: str, number: int = 0) -> ImageAnswer:
    """An image of a rollout, base64."""
    data = view.store.image(view.store.find(id), number)
    try:
        suffix = image_suffix(data)
    except ValueError as error:
        raise StoreError(f"The stored file is no image that is shown: {error}") from error
    return ImageAnswer(MEDIA_TYPES[suffix], base64.b64encode(data).decode("ascii"))


SHOWN = 200_000
"""Characters that a page shows."""


@dataclass(frozen=True)
class RawRecordAnswer:
    """The text of the record, as its file has it today.

    Attributes:
        text: its beginning.
        n_left_out: characters behind that.
    """

    text: str
    n_left_out: int


def raw_record(view: ProjectView, id: str) -> RawRecordAnswer:
    """The record that a rollout was imported from."""
    text = view.store.raw_record(id)
    return RawRecordAnswer(text[:SHOWN], max(len(text) - SHOWN, 0))


@dataclass(frozen=True)
class ViewersAnswer:
    """The viewers that take a rollout, by name, and what went wrong with others."""

    names: list[str]
    problems: list[str]


@dataclass(frozen=True)
class ViewedAnswer:
    """The content of a frame: HTML, or a module with the rollout that its `draw` gets."""

    html: str | None
    module: str | None
    rollout: dict[str, Any] | None


def viewers(view: ProjectView, id: str) -> ViewersAnswer:
    """The views of one's own that take a rollout."""
    rollout = _viewed(view, id)
    names, problems = [], []
    for name, viewer in installed_viewers().items():
        if isinstance(viewer, str):
            problems.append(f"{name}: {viewer}")
            continue
        try:
            if viewer.takes(rollout):
                names.append(name)
        except Exception as error:  # noqa: BLE001 - a package of others: its reader is told
            problems.append(f"{name}: takes raised {type(error).__name__}: {error}")
    return ViewersAnswer(names, problems)


def viewed(view: ProjectView, id: str, viewer: str) -> ViewedAnswer:
    """Has a viewer draw a rollout.

    Raises:
        StoreError: there is no such viewer, it raised, or what it gives is too large.
    """
    found = installed_viewers().get(viewer)
    if not isinstance(found, Viewer):
        raise StoreError(f"no viewer {seen(viewer)} is installed here.")
    rollout = _viewed(view, id)
    try:
        html = None if found.html is None else encodable(found.html(rollout))
        module = None if found.module is None else found.module.read_text("utf-8")
    except Exception as error:
        raise StoreError(f"viewer {viewer!r} raised {type(error).__name__}: {error}") from error
    size = len(html or module or "")
    if size > LARGEST:
        raise StoreError(f"viewer {viewer!r} gives {size:,} characters; at most {LARGEST:,} are drawn.")
    return ViewedAnswer(html, module, None if module is None else vars(rollout))


def _viewed(view: ProjectView, id: str) -> Viewed:
    record = view.store.record(id)
    return Viewed(dict(record.metadata), [dict(message) for message in record.messages])
