"""Several processes train one detector. Their launcher works without GPUs too, so this is tested anywhere."""

import json

import pytest
from test_detection import few_scenes, measured, needs_detectron2, scenes, small  # noqa: F401 - fixtures

from ringbench.errors import UsageError

pytestmark = needs_detectron2


def work_on_cpu(job) -> None:
    from detectron2.engine import defaults
    from torch.nn.parallel import DistributedDataParallel

    from transfer.detection.job import work

    # Detectron2's names a GPU
    defaults.create_ddp_model = lambda model, **options: DistributedDataParallel(model, broadcast_buffers=False)
    work(job)


@pytest.mark.parametrize("protocol", ["coco-c4-1x@1", "coco-keypoint-fpn-1x@1"])
def test_two_processes_train_one_detector_and_predict_every_image_once(scenes, small, tmp_path, monkeypatch, protocol):  # noqa: F811
    from transfer.detection import config, measure

    read = config.read

    def without_gpu(name: str):
        cfg = read(name)
        cfg.MODEL.RESNETS.NORM = cfg.MODEL.FPN.NORM = "naiveSyncBN_N"  # torch's own is for GPUs only
        return cfg

    monkeypatch.setattr(config, "read", without_gpu)
    monkeypatch.setattr(measure, "work", work_on_cpu)
    monkeypatch.setattr(measure, "_check_devices", lambda *arguments: None)
    outcome = measured(scenes, tmp_path / "run", protocol, batch=2, nproc=2)
    assert max(outcome["run"]["parity"].values()) < 1e-4
    predictions = json.loads((tmp_path / "run" / "predictions.json").read_text())
    places = [(found["image_id"], tuple(found["bbox"]), found["category_id"]) for found in predictions]
    assert len(set(places)) == len(places)
    assert {image_id for image_id, *_ in places} == {image["id"] for image in scenes.splits["test"].images}


def test_more_processes_than_gpus_are_refused_before_anything_is_computed(monkeypatch):
    import torch

    from transfer.detection.measure import _check_devices

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for nproc, device, words in ((2, "cpu", "--device cpu"), (2, "cuda", "here are 1"), (2, "cuda:1", "CUDA_VISIBLE_DEVICES")):
        with pytest.raises(UsageError, match=words):
            _check_devices(nproc, torch.device(device))
    _check_devices(1, torch.device("cuda:1"))
