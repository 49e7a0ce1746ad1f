"""Inspect's archives whose directory states more of a file than the archive holds."""

import io
import struct
import zipfile

import pytest

from rollout_traces.sources.problems import Problems
from tests.sources.reading import SAMPLES, rows_of

WHOLE = (SAMPLES / "inspect" / "sums.eval").read_bytes()
_DIRECTORY_ENTRY, _PACKED_SIZE_AT, _NAME_AT = b"PK\x01\x02", 20, 46


def stating_more_than_it_holds(name: str, data: bytes) -> bytes:
    """The archive, its directory saying that a file's packed bytes go on beyond the archive's end."""
    at = data.index(_DIRECTORY_ENTRY)
    while data[at + _NAME_AT :][: len(name)] != name.encode():
        at = data.index(_DIRECTORY_ENTRY, at + 1)
    size = struct.pack("<II", len(data) + 1, len(data) + 1)
    return data[: at + _PACKED_SIZE_AT] + size + data[at + _PACKED_SIZE_AT + len(size) :]


def packed_anew(method: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("header.json", '{"eval": {"task": "sums"}}')
        for n in range(3):
            text = f'{{"id": {n}, "epoch": 1, "input": "1+1", "messages": [], "scores": {{}}}}'
            archive.writestr(f"samples/{n}_epoch_1.json", text)
    return packed.getvalue()


ARCHIVES = {
    "zstandard": WHOLE,
    "stored": packed_anew(zipfile.ZIP_STORED),
    "deflated": packed_anew(zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("packing", ARCHIVES)
class TestAFileThatEndsBeforeItsStatedSize:
    def test_the_samples_beside_a_header_are_read(self, tmp_path, packing):
        path = tmp_path / "sums.eval"
        path.write_bytes(ARCHIVES[packing])
        n_whole = len(rows_of(path))
        path.write_bytes(stating_more_than_it_holds("header.json", ARCHIVES[packing]))
        assert len(rows_of(path)) == n_whole

    def test_the_samples_beside_a_sample_are_read_and_it_is_named_where_it_is_lost(self, tmp_path, packing):
        path, problems = tmp_path / "sums.eval", Problems()
        path.write_bytes(ARCHIVES[packing])
        n_whole = len(rows_of(path))
        path.write_bytes(stating_more_than_it_holds("samples/", ARCHIVES[packing]))
        n_lost = n_whole - len(rows_of(path, problems))
        assert [each.kind for each in problems.kept] == ["unreadable_samples"] * n_lost
        assert n_lost == (0 if packing == "deflated" else 1)  # deflated data says itself where it ends
