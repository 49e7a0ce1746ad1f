"""Images through the real Trackio: stored with their trace, hostile ones left out, siblings kept."""

from __future__ import annotations

import os

import pytest

import rollout_traces as rt
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.around import image
from rollout_traces.inspector.workspace import ProjectView, Workspace
from tests.generator import tiny_tokenizer
from tests.pictures import SVG, batch_with, huge_png, png


def logged(images, **options):
    logger = rt.RolloutLogger(
        project="seen", tokenizer=tiny_tokenizer(), max_rollout_traces_per_step=16, worker="thread", **options
    )
    logger.log_rollouts(batch_with(images), step=1)
    assert logger.finish(180)
    return logger


def rollouts():
    """The details of the stored rollouts, by their reward, and the store."""
    store = rt.open_store(project="seen")
    return {row["reward"]: store.details(row.id).get("images") for row in store.query().rows}, store


class TestEndToEnd:
    def test_paths_and_bytes_are_stored_as_trackio_media_and_read_back(self, trackio_dir, tmp_path):
        (tmp_path / "a.png").write_bytes(png(5, 6))
        logged([[tmp_path / "a.png", png()], None])
        stored, store = rollouts()
        assert [each["_type"] for each in stored[0.0]] == ["trackio.image", "trackio.image"]
        assert stored[1.0] is None
        ids = {row["reward"]: row.id for row in store.query().rows}
        assert store.image(ids[0.0], 0) == png(5, 6)
        assert store.image(ids[0.0], 1) == png()
        with pytest.raises(StoreError, match="no image 2"):
            store.image(ids[0.0], 2)

    def test_what_is_no_image_is_left_out_with_a_sentence_and_its_siblings_are_kept(
        self, trackio_dir, tmp_path
    ):
        secret = tmp_path / "secret.png"
        secret.write_text("password")
        os.mkfifo(tmp_path / "pipe.png")
        hostile = [str(secret), str(tmp_path / "pipe.png"), "/no/such.png", "a\0b", SVG, huge_png(), b"", 7]
        logger = logged([[*hostile, png()], [png()], [None]])
        stored, _ = rollouts()
        said = [each.get("left_out") for each in stored[0.0]]
        assert all(said[:-1])
        assert said[-1] is None
        assert "no PNG" in said[0]
        assert stored[1.0][0]["_type"] == "trackio.image"
        assert logger.counters["images_left_out"] == len(hostile) + 1
        assert b"password" not in b"".join(path.read_bytes() for path in (trackio_dir / "media").rglob("*.*"))

    def test_a_hook_sees_each_image_and_hides_it(self, trackio_dir, tmp_path):
        (tmp_path / "private.png").write_bytes(png())
        (tmp_path / "open.png").write_bytes(png())

        def hook(message):
            return (
                [message["content"]] if message["role"] == "image" and "private" in message["content"] else []
            )

        logger = logged([[tmp_path / "private.png", tmp_path / "open.png"]], redact=hook)
        stored, _ = rollouts()
        assert "redact hook" in stored[0.0][0]["left_out"]
        assert "file_path" in stored[0.0][1]
        assert logger.counters["images_redacted"] == 1
        assert str(tmp_path) not in str(stored)

    def test_a_media_folder_that_cannot_be_written_takes_no_trace_with_it(self, trackio_dir, monkeypatch):
        from trackio.media import TrackioImage

        def refuse(self, *_):
            raise OSError("no space left")

        monkeypatch.setattr(TrackioImage, "_save", refuse)
        logged([[png()], None])
        stored, _ = rollouts()
        assert "no space left" in stored[0.0][0]["left_out"]
        assert len(stored) == 2


class TestReading:
    @pytest.mark.parametrize(
        "path", ["../../secret", "/etc/hostname", "other/1.png", "seen/link.png", "seen/none.png"]
    )
    def test_a_path_that_leads_out_of_the_projects_folder_is_refused(self, trackio_dir, path):
        logged([[png()]])
        (trackio_dir / "secret").write_bytes(png())
        (trackio_dir / "media" / "other").mkdir()
        (trackio_dir / "media" / "other" / "1.png").write_bytes(png())
        (trackio_dir / "media" / "seen" / "link.png").symlink_to(trackio_dir / "secret")
        _, store = rollouts()
        with pytest.raises(StoreError, match="cannot be shown"):
            store.source.media(path)

    def test_the_page_draws_what_is_an_image_alone(self, trackio_dir):
        logged([[png()]])
        workspace = Workspace()
        row = workspace.store("seen").query().rows[0]
        view = ProjectView(workspace, "seen")
        assert image(view, row.id).type == "image/png"
        media = next((trackio_dir / "media").rglob("*.png"))
        media.write_bytes(SVG)
        with pytest.raises(StoreError, match="no image that is shown"):
            image(view, row.id)
        workspace.close()

    def test_a_trace_that_names_anything_else_for_its_images_can_still_be_opened(self, trackio_dir):
        from rollout_traces.inspector.payload import placed

        turns = [{"role": "user", "content": "a <image> b", "char_start": 0, "char_stop": 0}]
        payload = {"turns": turns, "raw": "", "warnings": []}
        for stored in (None, 7, "x", [], {"a": 1}):
            assert placed(payload, {"images": stored}) == payload
        odd = placed(payload, {"images": [None, {"left_out": 3}, {"file_path": 7}]})
        assert len(odd["images"]) == 3
        assert odd["warnings"]


class TestPlaces:
    def test_images_stand_where_their_tokens_do(self, trackio_dir):
        from rollout_traces.inspector.payload import rollout_payload

        logged([[png(), png(2, 2)]])
        _, store = rollouts()
        row = store.query().rows[0]
        payload = rollout_payload(row.id, store.record(row.id))
        user = next(turn for turn in payload["turns"] if turn["role"] == "user")
        assert user["images"] == [0, 1]
        assert user["content"] == "Look: \ufffc and \ufffc What is it?"
        assert not payload["warnings"]
