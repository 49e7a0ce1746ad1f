"""docs/schema.md is generated from the code: `python -m tests.test_schema_page` writes it."""

from __future__ import annotations

from pathlib import Path

from rollout_traces.ledger import columns as ledger
from rollout_traces.model import live_lines as live
from rollout_traces.model import spans, transcript
from rollout_traces.trace import conversion as trace
from tests.metrics.test_metrics_page import escaped

PAGE = Path(__file__).resolve().parent.parent / "docs" / "schema.md"

INTRODUCTION = """# What a trace holds

Generated from the code by `python -m tests.test_schema_page`.

A trace is self-contained: whatever copies a Trackio project (a sync, a Space, a server, a file copy) copies
the token truth with it. Each rollout that is kept is one `trackio.Trace` under `<split>/{trajectories}`; each
step and split has one step summary under `<split>/{steps}`.

- `messages`: OpenAI style, string content, the thinking inside the content between `<think>` and `</think>`,
  `tool_calls` with JSON-encoded arguments, paired with tool messages by `tool_call_id`; a tool message whose
  record says that the call failed has `is_error`. A message of more than a million characters is cut, with a mark that says so.
- `metadata`: flat and small, the keys below; a key is absent when its value is unknown.
- `spans`: one per sampled or tool turn under one root span. The root also carries `{track}` (the packed
  transcript) and `{details}` (flags with their sentences, timings, long answers); a step summary's root
  carries `{ledger}`. They are stored once, never searched, never shown to a person.

`rollout_traces.trace.conversion.read_transcript` gives the transcript back: everything exactly, but float tracks with
float16 precision (about three decimal digits; float32 where a value exceeds 65504).
"""


SPANS = f"""
## Spans of time

`timings` of a row is a list of spans, or (sums alone) a mapping of names to seconds. `rt.Spans` notes them. A span:

| key | meaning |
| --- | --- |
| `kind` | {", ".join(f"`{kind}`" for kind in spans.KINDS)}: waiting for an engine, reading the prompt, sampling, a tool's or environment's work, a reward function's |
| `start`, `end` | seconds since the epoch, of whatever clock the node has |
| `turn` | number of the turn that was sampled, from 0; of a tool's span that of the turn that called it |
| `engine` | what sampled it, where that differs from the row's `engine_ids` or changes between turns |
| `version` | policy version that sampled it, the oldest where it changed meanwhile |
| `name` | the tool or the reward function |
| `error` | what it failed with, where it failed |

`kind`, `start` and `end` are needed. A span that cannot be understood (another kind, no finite number, milliseconds, an end
before its start) is left out, counted as `spans_refused`, warned about and said by Lanes; its siblings stay. Overlapping spans are kept as they came.
Branches and sub-agents are rows of their own under one `episode_ids`, each with its spans. A call of a reward function for a whole
batch is given to each of its rows with the same start and end, and counts once.

A trace holds the spans of its rollout as they came, at most {spans.MOST_OF_A_ROW:,}, the longest ones (others are counted as `spans_left_out`, and Lanes says so). The
ledger's column `timings` holds those of every rollout, to the millisecond: at most {spans.MOST_OF_A_STEP:,} a step spread evenly over its
rollouts, the longest of each, and no fewer than {spans.FEWEST_OF_A_ROW} of one. It is JSON: `start` (of the first, seconds), `n` (spans that there
were) and lists with a number a span, `kind` (its place in the list above), `at` (milliseconds behind the first), `ms`, `turn`, `version`, and
`name`, `engine` and `error` (places in `texts`); -1 is unknown, and a list of nothing else is left out. `.ledger()` does not read it;
`.rollouts(columns=["timings"])` does.
"""

READING = """
## The table of rollouts

What reading makes of all this: one row a rollout of every run, traced or not, in parquet segments next to the project (`rollout-index/<project>/segments`), rebuilt from Trackio's data whenever in doubt. The files are plain parquet, which any program reads; `index.sqlite3` beside them says which of them are part of the table and which rows were replaced. The table has the ledger's columns under their names, those of the metadata where a rollout was traced (the trace's value where both know one), and

| column | type | known of | meaning |
| --- | --- | --- | --- |
| `run`, `run_id`, `split`, `step` | text, text, text, int | all | where it belongs |
| `traced` | bool | all | its conversation was kept |
| `superseded` | bool | all | a later attempt of the run began at the step or before it, so that the weights behind the rollout were thrown away; also where that attempt has not come as far yet |
| `late` | bool | all | it came after its step was closed |
| `id`, `kind`, `key`, `trace_index`, `timestamp` | text, text, text, int, text | traced | Trackio's place of the trace |
| `n_messages`, `prompt`, `reply` | int, text, text | traced | length and first words of the conversation, behind the thinking |
| `tool_names`, `error_signatures` | lists of texts | traced | tools that were called, and what their failures say |
| `messages`, `metadata`, `spans` | JSON text | traced, in exports | the trace as it was stored |

Unknown is null, and NaN is unknown. **An infinite number is a number**: it is one in the table, in `.ledger()`, in parquet and in queries (`reward = 'Infinity'`, `reward > 1e308`), and in JSON, which has none (JSON lines, `--json`, metadata of traces, the API), it is the text `"Infinity"` or `"-Infinity"`, as Trackio writes it; counts of values have it by that name, bins and means leave it out. Training data has finite rewards alone: there an infinite one is no reward. Of the trainer's extras true and false are 1 and 0; whole numbers that no float holds exactly (beyond 2^53) are kept as 64-bit integers; among texts a number is written as JSON writes it, 1 and 1.0 alike. `traced` and `superseded` are true or false of every rollout, also in exports. A column that is a number in one segment and a text in another is text. A step is put together anew when more of it comes; the newer row of a rollout (by `uid`) replaces the older. `rt.open_store(...).rollouts()` gives the table as Arrow; `.ledger()` gives numpy columns in which unknown whole numbers are masked, of the rollouts that ledgers know and no later attempt superseded; `.sql()` one SELECT over `rollouts` and `metrics(run, run_id, split, step, key, value, attempt, superseded)`.
"""


LIVE = f"""
## Live files

What a run has in flight, apart from all that is stored ([live.md](live.md)): `{live.LIVE_FOLDER}/<project>/<run id>/<node>-<rank>-<token>.jsonl`, JSON lines of at most {live.MAX_LINE:,} bytes, {live.MAX_BYTES >> 20} MB a run. Times are seconds since the epoch by the writer's clock. A line of another kind is passed over and counted.

| line | keys |
| --- | --- |
| the first | `live` (1), `project`, `run`, `run_id`, `node`, `rank`, `pid`, `texts` (false: prompts and words are left out) |
| an update | `id` (unique in the run), `at`, and what is new: `stage` ({", ".join(live.STAGES)}), `detail` (a tool's name, why it was aborted), `turns`, `tokens`, `words` (the last {live.MAX_TEXT} characters) |
| a rollout's first | also `begun`, `prompt` (its first {live.MAX_TEXT} characters), `source`, `group`, `step`, `split`, `attempt`; in a file that was written anew also `since` (when its stage began) and `n_stages` |
| a beat | `beat` (the writer's clock when it wrote), `finished` (true: the writer ended) |

A stored rollout that was one in flight says so in the column `extra/live`, where the batch's `extras` have its id under `live`.
"""


def schema_page() -> str:
    """The text of docs/schema.md."""
    lines = [
        INTRODUCTION.format(
            trajectories=trace.TRAJECTORIES,
            steps=trace.STEPS,
            track=trace.TRACK_KEY,
            details=trace.DETAILS_KEY,
            ledger=trace.LEDGER_KEY,
        ),
        f"## Metadata (schema {trace.SCHEMA_VERSION})\n",
        "| key | meaning |",
        "| --- | --- |",
        *(f"| `{key}` | {escaped(meaning)} |" for key, meaning in trace.METADATA.items()),
        f"\n## Ledger (schema {ledger.SCHEMA_VERSION})\n",
        "One row per rollout, for every rollout of every step, traced or not.\n",
        "| column | kind | meaning |",
        "| --- | --- | --- |",
        *(f"| `{column.name}` | {column.kind} | {escaped(column.meaning)} |" for column in ledger.COLUMNS),
        f"\n## Token track (schema {transcript.SCHEMA_VERSION})\n",
        "Per token: id, loss mask, response mask, character range, special or not, and where the trainer gave them "
        f"{', '.join(f'`{name}`' for name in (*transcript.INT_TRACKS, *transcript.FLOAT_TRACKS))}.",
        SPANS.rstrip("\n"),
        READING.rstrip("\n"),
        LIVE.rstrip("\n"),
    ]
    return "\n".join(lines) + "\n"


class TestSchemaPage:
    def test_the_page_is_what_the_code_says(self):
        assert PAGE.read_text() == schema_page()


if __name__ == "__main__":
    PAGE.write_text(schema_page())
