"""The options of `RolloutLogger(...)` as a type, for editors and type checkers.

Generated from `LoggerOptions` by `python -m tests.settings.test_logger_keywords`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict


class LoggerKeywords(TypedDict, total=False):
    """Keyword arguments of a logger; None leaves a default."""

    max_rollout_traces_per_step: int | None
    selection: str | Callable[..., Any] | None
    space_id: str | None
    private: bool | None
    server_url: str | None
    inspector_url: str | None
    resume: str | None
    ledger: bool | None
    run_settings: dict[str, Any] | None
    reward_range: list[float] | None
    metric_ranges: dict[str, Any] | None
    metric_keys: Any
    flag_parameters: dict[str, Any] | None
    all_rows_folder: str | None
    alert_webhook: str | None
    max_disk_gb: float | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    worker: str | None
    per_rank: bool | None
    max_bytes_per_step: int | None
    max_spool_bytes: int | None
    write_seconds: float | None
    max_step_bytes: int | None
    quiet_seconds: float | None
    join_seconds: float | None
    announces_closes: bool | None
    not_secret: list[str] | None
    quiet: bool | None
