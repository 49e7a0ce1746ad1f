"""Stored data that claims to be larger than it is costs nothing, and spoils nothing beside it."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.ledger import columns as ledgers
from rollout_traces.store import open_store
from rollout_traces.trace.conversion import LEDGER_KEY, TRACK_KEY, TraceRecord
from rollout_traces.trace.packing import pack_transcript, unpack_transcript
from tests.builders import make_transcript
from tests.store.projects import PROJECT, RUN, make_ledger, step_records, write_step, write_traces

MIB = 1 << 20
TURNS = [("user", "How many apples?"), ("assistant", "There are twelve apples, because 3 + 9 = 12.")]


@contextmanager
def memory_within(most: int) -> Iterator[None]:
    """Fails when more bytes than these are held at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{peak / MIB:.0f} MiB"


def taken_apart(packed: bytes) -> tuple[dict[str, Any], bytes]:
    """The head and the body of packed data."""
    raw = zlib.decompress(packed)
    size = int.from_bytes(raw[:4], "little")
    return orjson.loads(raw[4 : 4 + size]), raw[4 + size :]


def put_together(head: Mapping[str, Any], body: bytes) -> bytes:
    """Packed data of a head and a body."""
    text = json.dumps(head).encode()
    return zlib.compress(len(text).to_bytes(4, "little") + text + body, 9)


def array(name: str, values: np.ndarray, **entry: Any) -> tuple[dict[str, Any], bytes]:
    """One array of a packed transcript, and its bytes."""
    planes = values.view(np.uint8).reshape(len(values), values.dtype.itemsize).T.tobytes()
    return {"name": name, "dtype": values.dtype.str, "n": len(values)} | entry, planes


class Made:
    """A transcript whose packed form is changed before it is read."""

    def __init__(self) -> None:
        transcript = make_transcript(TURNS, versions=lambda n: np.full(n, 3, np.int32))
        self.messages = transcript.messages()
        self.head, self.body = taken_apart(base64.b64decode(pack_transcript(transcript, self.messages)))

    def replace(self, name: str, values: np.ndarray) -> None:
        """Puts other values into an array."""
        at, kept, entries = 0, [], []
        for entry in self.head["arrays"]:
            size = entry["n"] * np.dtype(entry["dtype"]).itemsize
            data = self.body[at : at + size]
            at += size
            if entry["name"] == name:
                entry, data = array(name, values)
            entries.append(entry)
            kept.append(data)
        self.head["arrays"], self.body = entries, b"".join(kept)

    def read(self) -> None:
        """Reads it."""
        unpack_transcript(base64.b64encode(put_together(self.head, self.body)).decode(), self.messages)


def many_tokens(made: Made) -> None:
    made.head["n"] = 3_000_000_000


def tokens_as_text(made: Made) -> None:
    made.head["n"] = "3000000000"


def negative_tokens(made: Made) -> None:
    made.head["n"] = -1


def long_array(made: Made) -> None:
    made.head["arrays"][0]["n"] = 3_000_000_000


def objects(made: Made) -> None:
    made.head["arrays"][0]["dtype"] = "|O"


def empty_items(made: Made) -> None:
    made.head["arrays"][0] |= {"dtype": "|V0", "n": 10**12}


def long_runs(made: Made) -> None:
    made.replace("versions", np.asarray([3, 2**31 - 1], np.int32))


def negative_runs(made: Made) -> None:
    n = made.head["n"]
    made.replace("versions", np.asarray([3, 3, -5, n + 5], np.int32))


def overlapping_raw(made: Made) -> None:
    made.head["turns"][1]["raw"] = [[0, len(made.messages[1]["content"])]] * 30_000


def raw_beyond_the_message(made: Made) -> None:
    made.head["turns"][1]["raw"] = [[0, 10**9]]


def overlapping_calls(made: Made) -> None:
    made.messages[1]["tool_calls"] = [
        {"id": "c", "function": {"name": "f", "arguments": "{}"}} for _ in range(1000)
    ]
    made.head["turns"][1]["calls"] = [{"name": "f", "raw": [0, 40], "range": [0, 0]}] * 1000


def overlapping_tokens(made: Made) -> None:
    n = 500_000
    made.head["n"] = n
    for mask in ("loss_mask", "response_mask", "special"):
        made.replace(mask, np.zeros((n + 7) // 8, np.uint8))
    made.replace("lengths", np.full(n, 60, np.uint8))
    made.replace("versions", np.asarray([3, n], np.int32))
    made.head["arrays"].append(array("char_starts", np.zeros(n, np.uint8))[0])
    made.body += bytes(n)


def short_mask(made: Made) -> None:
    made.replace("loss_mask", np.zeros(1, np.uint8))


def turn_beyond_the_tokens(made: Made) -> None:
    made.head["turns"][1]["range"] = [0, 0, 0, 10**15]


def missing(made: Made) -> None:
    del made.head["arrays"][0]["n"]


def no_list(made: Made) -> None:
    made.head["arrays"] = 5


class TestTokenTracks:
    @pytest.mark.parametrize(
        "attack",
        [many_tokens, tokens_as_text, negative_tokens, long_array, objects, empty_items, long_runs,
         negative_runs, overlapping_raw, raw_beyond_the_message, overlapping_calls, overlapping_tokens, short_mask,
         turn_beyond_the_tokens, missing, no_list],
    )  # fmt: skip
    def test_what_does_not_hold_is_refused_by_name_and_costs_nothing(self, attack: Callable[[Made], None]):
        made = Made()
        attack(made)
        with memory_within(64 * MIB), pytest.raises(StoreError, match="token track: damaged"):
            made.read()

    def test_what_holds_is_read(self):
        Made().read()

    def test_little_data_does_not_expand_to_much(self):
        bomb = base64.b64encode(zlib.compress(bytes(400 * MIB), 9)).decode()
        assert len(bomb) < MIB
        with memory_within(300 * MIB), pytest.raises(StoreError, match="that expand to more than"):
            unpack_transcript(bomb, [])


def ledger_of(rows: Any, **entry: Any) -> bytes:
    """A packed ledger of one column that says how many rows it has."""
    column = {"name": "reward", "kind": "float"} | entry
    stored = {"name": "reward", "dtype": "|i1", "n": 8} | {
        k: v for k, v in entry.items() if k in ("dtype", "n")
    }
    return put_together({"schema": 1, "rows": rows, "columns": [column], "arrays": [stored]}, bytes(8))


class TestLedgers:
    @pytest.mark.parametrize(
        "packed",
        [
            put_together(
                {"schema": 1, "rows": 20_000_000, "columns": [{"name": "uid", "kind": "text", "values": ["x"]}],
                 "arrays": [{"name": "uid", "dtype": "|u1", "n": 20_000_000}]},
                bytes(20_000_000),
            ),
            put_together(
                {"schema": 1, "rows": 2**20, "columns": [
                    {"name": f"sample/{i}", "kind": "text", "values": []} for i in range(40)
                ], "arrays": [{"name": f"sample/{i}", "dtype": "|u1", "n": 0} for i in range(40)]},
                b"",
            ),
            ledger_of(10**12),
            ledger_of("8"),
            ledger_of(True),
            ledger_of(-8),
            ledger_of(8.0),
            ledger_of(8, dtype="|O"),
            ledger_of(8, dtype="<f8"),
            ledger_of(8, n=-1),
            ledger_of(8, kind="pickle"),
            ledger_of(8, kind="int", low=2**70),
            ledger_of(8, kind="text", values=[]),
            ledger_of(8, kind="text", values=[{"a": 1}]),
            ledger_of(8, kind="tags", values=["truncated"]),
            ledger_of(8, name=["reward"]),
            put_together({"schema": "x", "rows": 1, "columns": [], "arrays": []}, b""),
            put_together({"rows": 1}, b""),
            put_together([], b""),  # type: ignore[arg-type]
        ],
    )  # fmt: skip
    def test_what_does_not_hold_is_refused_and_costs_nothing(self, packed):
        assert len(packed) < 100_000
        with memory_within(64 * MIB), pytest.raises(StoreError, match="ledger: damaged"):
            ledgers.unpack(packed)

    def test_what_holds_is_read(self):
        assert ledgers.unpack(ledger_of(8)).n_rows == 8


class TestAProjectWithMadeUpData:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        import trackio.utils
        from trackio import sqlite_storage

        for module in (trackio.utils, sqlite_storage):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path)
        return tmp_path

    def test_a_damaged_step_is_named_and_its_siblings_are_shown(self, folder, tmp_path):
        for step in (1, 3):
            write_step(make_ledger([[1.0, 0.0]], step=step, traced=(0,)), (0,))
        bad = TraceRecord(
            [],
            {"schema": 1, "kind": "digest", "step": 2, "split": "rollout"},
            [{"id": "digest", "name": "digest", "kind": "span",
              LEDGER_KEY: base64.b64encode(ledger_of(10**9)).decode()}],
        )  # fmt: skip
        write_traces({"rollout/steps": [bad]}, step=2)
        store = open_store(PROJECT, folder=folder, index_path=tmp_path / "index")
        assert [info.step for info in store.steps(RUN, "rollout") if info.n_rollouts] == [1, 3]
        assert store.count(rows="ledger") == 4
        store.close()

    def test_a_damaged_trace_is_named_and_its_siblings_open(self, folder, tmp_path):
        ledger = make_ledger([[1.0, 0.0]], step=1, traced=(0, 1))
        good, bad = step_records(ledger, (0, 1))
        made = Made()
        many_tokens(made)
        bad.spans[0][TRACK_KEY] = base64.b64encode(put_together(made.head, made.body)).decode()  # type: ignore[index]
        write_traces({"rollout/trajectories": [good, bad]}, step=1)
        store = open_store(PROJECT, folder=folder, index_path=tmp_path / "index")
        assert store.transcript(store.find("b1-0")) is not None
        with memory_within(64 * MIB), pytest.raises(StoreError, match="token track: damaged"):
            store.transcript(store.find("b1-1"))
        store.close()

    @pytest.mark.parametrize("depth", [500, 5_000, 100_000])
    def test_deeply_nested_json_is_no_crash(self, folder, tmp_path, depth):
        import sqlite3

        write_step(make_ledger([[1.0, 0.0]], step=1, traced=(0, 1)), (0, 1))
        with sqlite3.connect(folder / f"{PROJECT}.db") as database:
            nested = '{"a":' * depth + "1" + "}" * depth
            [(victim,)] = database.execute(
                "SELECT id FROM traces WHERE key LIKE '%trajectories' LIMIT 1"
            ).fetchall()
            database.execute("UPDATE traces SET metadata = ? WHERE id = ?", (nested, victim))
        database.close()
        store = open_store(PROJECT, folder=folder, index_path=tmp_path / "index")
        assert store.count() == 2
        other = next(row.id for row in store.query().rows if row.id != victim)
        assert store.transcript(other) is not None
        store.close()
