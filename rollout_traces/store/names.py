"""The names a query may use on any project, and what they mean."""

from __future__ import annotations

from rollout_traces.store.scope import Rows

MEANINGS = {
    "id": "Trackio's id of the trace",
    "run": "the run's name",
    "run_id": "Trackio's id of the run",
    "key": "the key the trace was logged under",
    "trace_index": "its place in the list it was logged in",
    "timestamp": "when Trackio stored it",
    "n_messages": "messages in the conversation",
    "prompt": "first words of the first user message",
    "reply": "first words of the last assistant message",
    "unreadable": "1 when its stored JSON is damaged",
}


def meanings() -> dict[str, str]:
    """Name -> meaning of all columns that have one; prefixed ones end in `/*`."""
    from rollout_traces.ledger import columns as ledger
    from rollout_traces.trace import conversion as trace

    ours = {name.replace("<name>", "*"): meaning for name, meaning in trace.METADATA.items()}
    return {**{c.name: c.meaning for c in ledger.COLUMNS}, **ours, **MEANINGS}


def known_names(rows: Rows) -> frozenset[str]:
    """Names that are understood although no row has them yet."""
    return _TRACES if rows == "traces" else _LEDGER


_SHARED = """
group sample prompt_key source trained discard_reason reward raw_reward reward_status advantage n_prompt
n_sampled n_environment n_thinking n_turns n_tool_calls n_tool_errors success stop_reason version_min
version_max staleness_max mean_logprob mismatch_k3 update_share flags selected_by selected_probability uid
""".split()  # noqa: SIM905
_TRACES = frozenset(_SHARED) | {
    "group_size",
    "n_tokens",
    "train_version",
    "decoded_from",
    "response_mask_from",
    "population",
    "status",
    "parsed_answer",
    "ground_truth",
    "unreadable",
    "schema",
}
_LEDGER = frozenset(_SHARED) | {
    "trace_uid",
    "mismatch_k1",
    "mismatch_abs_max",
    "log_ratio_sum",
    "clip_share",
    "answered",
}
