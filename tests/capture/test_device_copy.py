"""Tensors leave a GPU in one transfer, and the trainer's thread waits for nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rollout_traces.capture.device_copy import MAX_IN_FLIGHT, CudaCopier, Staged, any_on_gpu
from rollout_traces.capture.hand_over import HandOver
from rollout_traces.capture.host_copy import capture
from rollout_traces.errors import Warnings
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.spool.folder import MemorySpool
from rollout_traces.spool.patient_writer import PatientWriter
from rollout_traces.spool.record import batch_from_record

WAITS = (
    "item",
    "tolist",
    "numpy",
    "cpu",
    "__bool__",
    "__int__",
    "__float__",
    "nonzero",
    "masked_select",
    "to",
)


class OnDevice(torch.Tensor):
    """A CPU tensor that says it is on a GPU, and keeps a diary of what would make its caller wait."""

    diary: list[str] = []
    transfers = 0

    @property
    def device(self):
        return SimpleNamespace(type="cuda", index=0)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        on_caller = threading.current_thread() is threading.main_thread()
        if on_caller and name in WAITS:
            cls.diary.append(name)
        if on_caller and name == "__getitem__" and isinstance(args[1], torch.Tensor):
            cls.diary.append("boolean indexing")
        if name == "copy_" and not isinstance(args[0], OnDevice) and isinstance(args[1], OnDevice):
            cls.transfers += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class PretendCopier:
    """The device of `OnDevice`; what it sends arrives late, as on a real one."""

    def device_buffer(self, n_bytes, like):
        return torch.empty(n_bytes, dtype=torch.uint8).as_subclass(OnDevice)

    def host_buffer(self, n_bytes):
        return torch.empty(n_bytes, dtype=torch.uint8)

    def send(self, buffer, host):
        arrived = threading.Event()
        sent = buffer.detach()

        def deliver():
            time.sleep(0.05)
            host.copy_(sent)
            arrived.set()

        threading.Thread(target=deliver).start()
        return arrived

    def wait(self, event):
        assert threading.current_thread() is not threading.main_thread()
        event.wait()

    def give_back(self, host):
        host.fill_(255)

    def give_up(self, host): ...


def make_arrays(B=4, T=9, seed=0):
    rng = np.random.default_rng(seed)
    mask = np.arange(T) < rng.integers(1, T + 1, (B, 1))
    return {
        "input_ids": rng.integers(0, 1000, (B, T)),
        "attention_mask": mask,
        "loss_mask": rng.integers(0, 2, (B, T)),
        "versions": rng.integers(-1, 3, (B, T)),
        "logprobs": rng.normal(size=(B, T)).astype(np.float16).astype(np.float32),
        "rewards": rng.normal(size=B),
        "group_ids": np.arange(B) // 2,
        "reward_components": {"correct": rng.normal(size=B)},
        "stop_reasons": ["stop"] * B,
    }


def move(value, place):
    if isinstance(value, np.ndarray):
        return place(torch.from_numpy(value.copy()))
    if isinstance(value, dict):
        return {name: move(item, place) for name, item in value.items()}
    return value


def assert_same(host, expected):
    np.testing.assert_array_equal(host.input_ids, expected.input_ids)
    np.testing.assert_array_equal(host.loss_mask, expected.loss_mask)
    np.testing.assert_array_equal(host.tracks["versions"], expected.tracks["versions"])
    np.testing.assert_array_equal(host.tracks["logprobs"], expected.tracks["logprobs"])
    np.testing.assert_array_equal(host.row_floats["rewards"], expected.row_floats["rewards"])
    np.testing.assert_array_equal(host.group_ids, expected.group_ids)
    np.testing.assert_array_equal(host.reward_components["correct"], expected.reward_components["correct"])


class TestPretendDevice:
    @pytest.fixture(autouse=True)
    def diary(self):
        OnDevice.diary, OnDevice.transfers = [], 0

    def hand_over(self, parts):
        spool = MemorySpool(1 << 24)
        hand_over = HandOver(
            PatientWriter(spool, Warnings(Counter()), 0.5), Warnings(Counter()), 1 << 24, PretendCopier()
        )
        future = hand_over.from_device(parts, step=1, split="rollout")
        return spool, hand_over, future

    def test_one_transfer_and_no_waiting_on_the_calling_thread(self):
        parts = [
            RolloutBatch(**move(make_arrays(seed=s), lambda t: t.as_subclass(OnDevice))) for s in range(5)
        ]
        assert any_on_gpu(parts)
        _, hand_over, future = self.hand_over(parts)
        assert not future.done()
        assert hand_over.wait_for_device(10)
        assert OnDevice.diary == []
        assert OnDevice.transfers == 1

    def test_what_arrives_is_what_a_host_batch_would_have_been(self):
        arrays = make_arrays()
        spool, hand_over, _ = self.hand_over(
            [RolloutBatch(**move(arrays, lambda t: t.as_subclass(OnDevice)))]
        )
        assert hand_over.wait_for_device(10)
        [name] = spool.names()
        expected = capture([RolloutBatch(**arrays)], step=1, split="rollout")
        assert_same(batch_from_record(spool.read(name)), expected)

    @pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64])
    def test_versions_arrive_as_they_are(self, dtype):
        arrays = make_arrays()
        arrays["versions"] = (arrays["versions"] + (0 if dtype is np.int32 else 2**40)).astype(dtype)
        spool, hand_over, _ = self.hand_over(
            [RolloutBatch(**move(arrays, lambda t: t.as_subclass(OnDevice)))]
        )
        assert hand_over.wait_for_device(10)
        [name] = spool.names()
        found = batch_from_record(spool.read(name)).tracks["versions"]
        np.testing.assert_array_equal(found, arrays["versions"][arrays["attention_mask"]])

    def test_the_trainer_may_change_everything_at_once(self):
        arrays = make_arrays()
        batch = RolloutBatch(**move(arrays, lambda t: t.as_subclass(OnDevice)))
        mixed = RolloutBatch(
            **{
                **move(arrays, lambda t: t.as_subclass(OnDevice)),
                "rewards": torch.from_numpy(arrays["rewards"].copy()),
            }
        )
        spool, hand_over, _ = self.hand_over([batch, mixed])
        for part in (batch, mixed):
            for value in (part.input_ids, part.loss_mask, part.versions, part.logprobs, part.rewards):
                value.zero_()
        assert hand_over.wait_for_device(10)
        [name] = spool.names()
        host = batch_from_record(spool.read(name))
        expected = capture([RolloutBatch(**arrays)] * 2, step=1, split="rollout")
        assert_same(host, expected)


def refuse(*args, **kwargs):
    raise RuntimeError("out of memory")


class TestADeviceWithoutRoom:
    @pytest.mark.parametrize("failing", ["device_buffer", "send"])
    def test_costs_the_hand_over_and_none_that_come_later(self, monkeypatch, failing):
        batch = RolloutBatch(**move(make_arrays(), lambda t: t.as_subclass(OnDevice)))
        copier = CudaCopier()
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda n, dtype, **_: empty(n, dtype=dtype))
        monkeypatch.setattr(copier, failing, refuse)
        for _ in range(2 * MAX_IN_FLIGHT):
            with pytest.raises(RuntimeError, match="out of memory"):
                Staged([batch], copier)
        assert copier._n_out == 0

    def test_nor_does_memory_that_cannot_be_pinned(self, monkeypatch):
        copier = CudaCopier()
        monkeypatch.setattr(torch, "empty", refuse)
        for _ in range(2 * MAX_IN_FLIGHT):
            with pytest.raises(RuntimeError, match="out of memory"):
                copier.host_buffer(100)
        assert copier._n_out == 0


class Recording(PretendCopier):
    """A copier that remembers the sizes that were asked for."""

    def __init__(self):
        self.sizes = []

    def host_buffer(self, n_bytes):
        self.sizes.append(n_bytes)
        return super().host_buffer(n_bytes)


def test_the_buffer_ends_with_the_last_tensor():
    copier = Recording()
    on_device = lambda tensor: tensor.as_subclass(OnDevice)  # noqa: E731
    arrays = {
        key: value for key, value in make_arrays(B=4, T=9).items() if key not in ("rewards", "group_ids")
    }
    staged = Staged([RolloutBatch(**move(arrays, on_device))], copier)
    last = staged._slots[-1]
    assert copier.sizes == [last.at + last.n_bytes] and last.n_bytes != staged._slots[-2].n_bytes
    stops = [slot.at + slot.n_bytes for slot in staged._slots]
    assert all(stop <= slot.at for stop, slot in zip(stops, staged._slots[1:], strict=False))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestCuda:
    def test_the_calling_thread_synchronises_with_nothing(self):
        arrays = make_arrays(B=64, T=2000)
        copier = CudaCopier()
        batch = RolloutBatch(**move(arrays, lambda t: t.cuda()))
        for _ in range(3):
            torch.cuda.set_sync_debug_mode("error")
            try:
                staged = Staged([batch], copier)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            parts = staged.arrive()
            assert_same(
                capture(parts, step=1, split="rollout"),
                capture([RolloutBatch(**arrays)], step=1, split="rollout"),
            )
            staged.release()

    def test_the_trainer_may_change_and_free_its_tensors_at_once(self):
        arrays = make_arrays(B=64, T=2000)
        copier = CudaCopier()
        batch = RolloutBatch(**move(arrays, lambda t: t.cuda()))
        staged = Staged([batch], copier)
        for value in (batch.input_ids, batch.loss_mask, batch.versions, batch.logprobs):
            value.zero_()
        del batch, value
        torch.full((64, 2000), 7, device="cuda")
        host = capture(staged.arrive(), step=1, split="rollout")
        assert_same(host, capture([RolloutBatch(**arrays)], step=1, split="rollout"))
