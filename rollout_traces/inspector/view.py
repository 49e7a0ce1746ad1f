"""What a page's function is about: a project, or one split of a run in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from rollout_traces.inspector.workspace import Workspace
from rollout_traces.store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class ProjectView:
    """A project.

    Attributes:
        workspace: where it is read.
        project: its name.
    """

    workspace: Workspace
    project: str

    @property
    def store(self) -> Store:
        """Its store.

        Raises:
            StoreError: there is no such project, or it is still being indexed.
        """
        return self.workspace.store(self.project)

    def remembered(self, key: tuple[Any, ...], compute: Callable[[], T]) -> T:
        """An answer, computed again only when the project has new rows."""
        return self.workspace.remembered(key, self.project, compute)

    def surveyed(self, key: tuple[Any, ...], compute: Callable[[], T]) -> T:
        """An answer that looks at all rows of a run, remembered; one such is computed at a time."""
        return self.workspace.surveyed(key, self.project, compute)


@dataclass(frozen=True)
class SplitView(ProjectView):
    """A split of a run.

    Attributes:
        run: the run's name or id.
        split: `rollout`, `eval-rollout` or another that was logged.
    """

    run: str
    split: str = "rollout"


@dataclass(frozen=True)
class EvaluationView(SplitView):
    """A split of a run, the evaluation's where none is named."""

    split: str = "eval-rollout"


def taken(cls: type[T], found: object, **more: Any) -> T:
    """An answer whose fields are those of an object of the same names, and what is given besides.

    Args:
        cls: a dataclass.
        found: has the fields that are not given and have no default.
        **more: fields by name.
    """
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    given = {name: getattr(found, name) for name in names if name not in more and hasattr(found, name)}
    return cls(**given, **more)
