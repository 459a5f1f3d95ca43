"""The statistics of a network's batch norms tell which inputs it was trained on (CASES C12)."""

import copy
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from backbones.drift import CHOICES, SUSPECT, by_stage, drift
from backbones.trunk import FrozenBackbone, random_trunk

IMAGENET, UNIT = "scale01|normalize(imagenet)", "scale01"


@functools.cache
def real_images(folder: Path, count: int = 64, size: int = 64) -> torch.Tensor:
    """Every n-th image of a folder, resized to a square."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in {".jpg", ".png"})
    chosen = paths[:: max(1, len(paths) // count)][:count]
    assert chosen, folder
    pixels = [np.array(Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)) for path in chosen]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()


def behind(trunk, choice: str) -> FrozenBackbone:
    scale01, mean, std = CHOICES[choice]
    return FrozenBackbone(trunk, {}, scale01=scale01, mean=mean, std=std)


def trained(images: torch.Tensor, choice: str, stem: str = "imagenet"):
    """A random trunk whose batch norms have seen `images` behind the tensor steps of `choice`."""
    trunk = random_trunk("resnet18", stem, 0)
    inputs = behind(copy.deepcopy(trunk), choice).prepare(images)
    trunk.train()
    for module in trunk.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # an average over all batches
    with torch.no_grad():
        for batch in inputs.split(64):
            trunk(batch)
    return trunk.eval()


@pytest.fixture(scope="module")
def pictures(real_data):
    return real_images(real_data("coco_mini200"))


@pytest.fixture(scope="module")
def trained_on(pictures):
    return functools.cache(lambda choice, stem="imagenet": trained(pictures, choice, stem))


@pytest.mark.parametrize("name", ["cifar10_jpeg", "dtd10", "gtsrb_3frames"])
@pytest.mark.parametrize(("right", "wrong"), [(IMAGENET, UNIT), (UNIT, IMAGENET), (IMAGENET, "pixels in 0..255")])
def test_the_wrong_range_is_noticed_on_other_images_and_the_right_one_named(trained_on, real_data, name, right, wrong):
    trunk, images = trained_on(right), real_images(real_data(name))
    assert drift(behind(trunk, right), images).warning is None
    found = drift(behind(trunk, wrong), images)
    assert found.best == right
    assert found.distance > SUSPECT > found.best_distance
    assert f"at the first batch norm {right} fits better" in found.warning


@pytest.mark.parametrize("right", [IMAGENET, UNIT])
def test_unusual_images_alone_raise_no_alarm(trained_on, real_data, right):
    assert drift(behind(trained_on(right), right), real_images(real_data("bccd_voc"))).warning is None


def test_every_stage_has_its_distance_and_all_are_small_for_what_was_seen(trained_on, pictures):
    seen, wrong = (
        by_stage(behind(trained_on(IMAGENET), IMAGENET), pictures),
        by_stage(behind(trained_on(IMAGENET), UNIT), pictures),
    )
    assert list(seen) == ["res2", "res3", "res4", "res5"]
    assert max(seen.values()) < 0.05
    assert all(wrong[level] > seen[level] for level in seen)


def test_two_streams_are_measured_behind_their_colour_conversion(trained_on, pictures):
    trunk = trained_on(UNIT, "lab")
    assert drift(behind(trunk, UNIT), pictures).warning is None
    assert drift(behind(trunk, IMAGENET), pictures).best == UNIT


def test_the_distance_is_the_median_divergence_of_gaussians():
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    trunk = random_trunk("resnet18", "imagenet", 0)
    inputs = trunk.conv1(images.double().float() / 255).detach().double()
    one = torch.distributions.Normal(inputs.mean((0, 2, 3)), (inputs.var((0, 2, 3), correction=0) + 1e-5).sqrt())
    other = torch.distributions.Normal(torch.zeros(64).double(), torch.full((64,), 1 + 1e-5).double().sqrt())
    expected = torch.distributions.kl_divergence(one, other).median().item()
    assert drift(behind(trunk, UNIT), images).distance == pytest.approx(expected, rel=1e-4)
