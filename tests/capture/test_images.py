"""What the calling thread takes of a batch's images."""

from __future__ import annotations

import base64
from pathlib import Path

from rollout_traces.capture import images
from rollout_traces.capture.images import plain_images


def test_paths_stay_paths_and_bytes_become_base64():
    found = plain_images([["a.png", Path("/b/c.png")], b"xyz", None, [bytearray(b"x"), memoryview(b"y")]])
    assert found[0] == [{"path": str(Path.cwd() / "a.png")}, {"path": "/b/c.png"}]
    assert base64.b64decode(found[1][0]["data"]) == b"xyz"
    assert found[2] is None
    assert [base64.b64decode(each["data"]) for each in found[3]] == [b"x", b"y"]


def test_what_is_no_image_is_said_in_its_place():
    found = plain_images([[1, b"x"], {"a": 1}])
    assert "seen int" in found[0][0]["left_out"]
    assert "data" in found[0][1]
    assert "seen dict" in found[1][0]["left_out"]


def test_bytes_beyond_the_budget_and_images_beyond_the_limit_are_said(monkeypatch):
    monkeypatch.setattr(images, "MAX_BYTES", 5)
    monkeypatch.setattr(images, "MAX_IMAGES", 2)
    found = plain_images([[b"1234", b"56", b"7"]])[0]
    assert "data" in found[0]
    assert "Give paths" in found[1]["left_out"]
    assert "1 further" in found[2]["left_out"]
