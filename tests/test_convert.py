"""`bench convert` and what `bench register` and `bench run` say about a checkpoint."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from layouts import moco_like, trunk_state
from typer.testing import CliRunner

from bench import registry
from bench.cli import app
from bench.inputs import sample
from imagesets import image_set
from imagesets.pipeline import parse
from ringbench import places
from ringbench.errors import UsageError
from transfer.detection.settings import detector_inputs

STATE, OTHER = trunk_state(seed=0), trunk_state(seed=1)


def bench(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def moco(tmp_path: Path) -> Path:
    torch.save(moco_like("encoder_q", "encoder_k", STATE, OTHER, "module.queue"), tmp_path / "moco.pth")
    return tmp_path / "moco.pth"


@pytest.mark.parametrize("target", ["safetensors", "torchvision", "detectron2"])
def test_converting_twice_gives_the_same_bytes(moco, tmp_path, target):
    for name in ("one", "two"):
        told = bench("convert", moco, "--to", target, "--out", tmp_path / f"{name}.out")
    assert "all 120 tensors of a resnet18, imagenet stem (moco format)" in told
    assert "state_dict.encoder_k (120)" in told
    assert (tmp_path / "one.out").read_bytes() == (tmp_path / "two.out").read_bytes()
    assert json.loads((tmp_path / "one.json").read_text())["certificate"]["prefix"] == "module.encoder_q"


@pytest.mark.parametrize("colour", ["rgb", "bgr"])
@pytest.mark.parametrize("steps", ["", "|scale01", "|scale01|normalize(imagenet)", "|normalize(100,110,120;1,1,57)"])
def test_a_detector_is_told_to_prepare_pixels_as_the_entry_does(colour, steps):
    """CASES C13. Its arithmetic, (pixels in its channel order - mean) / std, is that of the pipeline."""
    pipeline, told = parse(colour + steps), detector_inputs(parse(colour + steps))
    image = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    ordered = image if told["INPUT.FORMAT"] == "RGB" else image[..., ::-1]
    found = (ordered - np.array(told["MODEL.PIXEL_MEAN"])) / np.array(told["MODEL.PIXEL_STD"])
    expected = pipeline.prepare(image) / (255 if pipeline.scale01 else 1)
    if pipeline.mean:
        expected = (expected - np.array(pipeline.mean)) / np.array(pipeline.std)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_card_of_a_detectors_file_holds_its_inputs_and_they_must_be_fixed(moco, tmp_path):
    """CASES C13, with the numbers of MoCo's own detection configuration."""
    told = bench("convert", moco, "--to", "detectron2", "--out", tmp_path / "d2.pkl")
    detector = json.loads((tmp_path / "d2.json").read_text())["detector"]
    assert detector["INPUT.FORMAT"] == "RGB" and "INPUT.FORMAT RGB" in told
    assert detector["MODEL.PIXEL_MEAN"] == [123.675, 116.28, 103.53]
    assert detector["MODEL.PIXEL_STD"] == [58.395, 57.12, 57.375]
    with pytest.raises(UsageError, match="a detector needs fixed ones"):
        detector_inputs(parse("rgb|scale01|normalize(dataset)"))


def test_register_tells_the_way_to_the_trunk_and_show_shows_the_certificate(moco):
    told = bench("register", "mine", moco)
    assert "moco, trunk at state_dict.module.encoder_q" in told
    assert "state_dict.queue (1)" in told
    shown = bench("show", "mine")
    assert "prefix: module.encoder_q" in shown
    assert "dropped: optimizer: 1" in shown


def test_a_hostile_file_is_neither_run_nor_registered(tmp_path):
    """CASES C11."""

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    for suffix in (".pth", ".pth.tar", ".ckpt", ".pkl", ".bin"):
        (tmp_path / f"bad{suffix}").write_bytes(pickle.dumps({"state_dict": Hostile()}))
        told = bench("register", "bad", tmp_path / f"bad{suffix}", code=1)
        assert told.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    assert not (places.home() / "registry.yaml").exists()


def test_a_wrong_pipeline_is_told_when_registering_and_noted_in_the_result(tmp_path):
    """CASES C12. Batch norms that have seen the digits in 0..1 are fed digits normalised for ImageNet."""
    digits = registry.load().imagesets["digits"]
    images, pipeline = image_set.load(digits, places.data()), parse("rgb|resize(64,bilinear)|scale01")
    network = torchvision.models.resnet18(weights=None).train()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        network(sample(images, pipeline, 64).float() / 255)
    torch.save(network.state_dict(), tmp_path / "enc.pth")
    wrong = "rgb|resize(64,bilinear)|scale01|normalize(imagenet)"
    told = bench("register", "right", tmp_path / "enc.pth", "--pipeline", pipeline, "--imageset", "digits")
    assert "digits looks like the inputs of training" in told
    told = bench("register", "wrong", tmp_path / "enc.pth", "--pipeline", wrong, "--imageset", "digits")
    assert "at the first batch norm scale01 fits better" in told
    ran = bench("run", "--backbone", "wrong", "--task", "digits_knn")
    assert "at the first batch norm scale01 fits better" in ran
    assert "fits better" not in bench("run", "--backbone", "right", "--task", "digits_knn")


def test_a_3x3_stem_is_registered_with_what_the_file_does_not_show(tmp_path):
    torch.save(trunk_state("resnet18", "cifar"), tmp_path / "enc.pth")
    assert "padded by 1" in bench("register", "one", tmp_path / "enc.pth")
    assert "padded by 2" in bench("register", "two", tmp_path / "enc.pth", "--format", "solo_learn")
    assert "padded by 2" in bench("register", "three", tmp_path / "enc.pth", "--stem", "cifar_pad2")
    assert "unknown arch 'vgg'; expected resnet18" in bench("register", "four", tmp_path / "enc.pth", "--arch", "vgg", code=2)
