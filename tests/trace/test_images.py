"""What is taken for an image, and what is refused with a sentence."""

from __future__ import annotations

import io
import os

import pytest

from rollout_traces.trace.images import MAX_BYTES, image_suffix, read_file
from tests.pictures import SVG, huge_png, png


class TestKinds:
    @pytest.mark.parametrize(
        ("name", "suffix"), [("PNG", "png"), ("JPEG", "jpg"), ("GIF", "gif"), ("WEBP", "webp")]
    )
    def test_the_four_kinds_that_browsers_draw_are_told_by_their_bytes(self, name, suffix):
        from PIL import Image

        file = io.BytesIO()
        Image.new("RGB", (30, 20), (1, 2, 3)).save(file, format=name)
        assert image_suffix(file.getvalue()) == suffix

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (SVG, "no PNG, JPEG, GIF or WebP"),
            (b"", "0 bytes"),
            (huge_png(), "too many pixels"),
            (png(9000, 8000)[:64], "9,000 x 8,000 pixels"),
            (png()[:18], "no PNG"),
            (b"\xff\xd8\xff\xe0\x00\x00" * 4, "no PNG"),
            (b"\xff\xd8\xff", "no PNG"),
            (b"RIFF....WAVEfmt ", "no PNG"),
            (b"GIF8", "no PNG"),
            (b"\x89PNG\r\n\x1a\n" + b"\0" * MAX_BYTES, "at most"),
        ],
    )
    def test_what_is_none_is_refused_with_what_was_seen(self, data, said):
        with pytest.raises(ValueError, match=said):
            image_suffix(data)


class TestFiles:
    def test_a_file_is_read(self, tmp_path):
        (tmp_path / "a.png").write_bytes(png())
        assert read_file(str(tmp_path / "a.png")) == png()

    def test_a_pipe_and_a_folder_are_refused_and_do_not_hang(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for name in ("pipe", "."):
            with pytest.raises((ValueError, OSError)):
                read_file(str(tmp_path / name))

    def test_a_file_that_is_too_large_is_not_read(self, tmp_path):
        with (tmp_path / "large").open("wb") as file:
            file.truncate(MAX_BYTES + 1)
        with pytest.raises(ValueError, match="at most"):
            read_file(str(tmp_path / "large"))
