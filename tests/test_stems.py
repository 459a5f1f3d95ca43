import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from backbones.fast import fold_batch_norm
from backbones.spec import Arch
from backbones.stems import SameConv2d, SameMaxPool2d, lab, ydbdr
from backbones.trunk import ARCHS, FrozenBackbone, Trunk, TwoStream, build, random_trunk

GENERATOR = torch.Generator().manual_seed(0)


def same_by_hand(x, kernel, stride, reduce):
    """One output at a time: TensorFlow's definition of SAME, windows cut at the border."""
    size = x.shape[-1]
    out = math.ceil(size / stride)
    before = max((out - 1) * stride + kernel - size, 0) // 2
    rows = []
    for i in range(out):
        row = []
        for j in range(out):
            top, left = i * stride - before, j * stride - before
            row.append(reduce(x, top, left))
        rows.append(torch.stack(row, dim=-1))
    return torch.stack(rows, dim=-2)


@pytest.mark.parametrize("size", [6, 7, 8, 9])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (7, 2), (1, 2), (3, 1)])
def test_same_padding_is_tensorflows(size, kernel, stride):
    x = torch.randn(2, 3, size, size, generator=GENERATOR).relu()
    layer = SameConv2d(3, 4, kernel, stride, bias=False)

    def convolve(x, top, left):
        total = torch.zeros(2, 4)
        for a in range(kernel):
            for b in range(kernel):
                if 0 <= top + a < size and 0 <= left + b < size:
                    total = total + x[:, :, top + a, left + b] @ layer.weight[:, :, a, b].T
        return total

    def largest(x, top, left):
        return x[:, :, max(top, 0) : top + kernel, max(left, 0) : left + kernel].amax((2, 3))

    torch.testing.assert_close(layer(x), same_by_hand(x, kernel, stride, convolve), rtol=1e-5, atol=1e-5)
    if kernel == 3:
        torch.testing.assert_close(SameMaxPool2d(kernel, stride)(x), same_by_hand(x, kernel, stride, largest))


def test_the_same_stem_pads_every_layer_of_stride_2_and_the_same_pool_stem_the_pooling_alone():
    def same(stem):
        return [
            name for name, module in Trunk("resnet50", stem).named_modules() if isinstance(module, (SameConv2d, SameMaxPool2d))
        ]

    strided = [f"layer{i}.0.{layer}" for i in (2, 3, 4) for layer in ("conv2", "downsample.0")]
    assert same("same") == ["conv1", "maxpool", *strided]
    assert same("same_pool") == ["maxpool"]
    assert same("imagenet") == same("cifar") == []


def test_padding_2_makes_34_pixels_of_32_as_in_solo_learn():
    levels = Trunk("resnet18", "cifar_pad2")(torch.zeros(1, 3, 32, 32))
    assert [value.shape[-1] for value in levels.values()] == [34, 17, 9, 5]


def test_stride_2_halves_the_maps_of_the_cifar_stem_and_keeps_its_tensors():
    fast, usual = (Trunk("resnet18", stem) for stem in ("cifar_s2", "cifar"))
    assert [value.shape[-1] for value in fast(torch.zeros(1, 3, 32, 32)).values()] == [16, 8, 4, 2]
    assert {k: v.shape for k, v in fast.state_dict().items()} == {k: v.shape for k, v in usual.state_dict().items()}


def test_lab_and_ydbdr_are_scikit_images():
    """Values of skimage.color.rgb2lab and rgb2ydbdr, scikit-image 0.26, for uint8 pixels."""
    pixels = torch.tensor([[1, 2, 3], [192, 67, 251], [195, 103, 9], [211, 21, 242], [36, 87, 70], [216, 88, 140]])
    images = (pixels.double() / 255).T.reshape(1, 3, 1, 6)
    expected_lab = [
        [0.50983, -0.12249, -0.4705],
        [54.22416, 75.57088, -68.925],
        [53.30407, 31.60615, 59.54769],
        [52.72755, 88.06027, -66.17868],
        [33.20702, -21.79305, 4.75803],
        [55.55878, 55.13248, -2.90709],
    ]
    expected_ydbdr = [
        [0.00712, 0.00699, 0.00608],
        [0.49157, 0.74126, -0.49685],
        [0.46977, -0.65373, -0.56092],
        [0.40394, 0.81997, -0.80515],
        [0.27378, 0.00113, 0.25213],
        [0.51843, 0.04595, -0.62486],
    ]
    for convert, expected in ((lab, expected_lab), (ydbdr, expected_ydbdr)):
        found = convert(images).reshape(3, 6).T
        torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=2e-5)
        torch.testing.assert_close(convert(images.float()).reshape(3, 6).T, found.float(), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("arch", "width"), [("resnet18", 1024), ("resnet18x0.5", 512), ("resnet50x0.5", 2048)])
def test_cmc_features_are_those_of_both_streams_side_by_side(arch, width):
    """CASES C9."""
    trunk = random_trunk(arch, "lab", 0).eval()
    images = torch.rand(2, 3, 64, 64, generator=GENERATOR)
    colours = lab(images)
    mean, std = torch.tensor([50.0, 6.025, -6.6895]), torch.tensor([50.0, 92.208, 101.1675])
    colours = (colours - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1)
    with torch.no_grad():
        expected = torch.cat((trunk.l_to_ab(colours[:, :1])["res5"], trunk.ab_to_l(colours[:, 1:])["res5"]), dim=1)
        assert torch.equal(trunk(images)["res5"], expected)
    pooled = FrozenBackbone(trunk, {})((images * 255).to(torch.uint8))["pooled"]
    assert pooled.shape == (2, width) == (2, trunk.width)


@pytest.mark.parametrize("stem", ["lab", "ydbdr"])
def test_colours_are_converted_in_float32_where_all_else_is_in_half(stem):
    trunk, images = random_trunk("resnet18x0.5", stem, 0).eval(), torch.rand(2, 3, 32, 32)
    exact = trunk._split(images)
    with torch.autocast("cpu", torch.bfloat16):
        for found, expected in zip(trunk._split(images), exact, strict=True):
            assert torch.equal(found, expected)


def test_half_types_convert_colours_in_float32():
    trunk = random_trunk("resnet18x0.5", "lab", 0).eval()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=GENERATOR)
    exact, half = (FrozenBackbone(trunk, {}, dtype=dtype)(images)["pooled"].float() for dtype in (torch.float32, torch.bfloat16))
    assert functional.cosine_similarity(exact, half).min() > 0.999


@pytest.mark.parametrize("stem", ["same", "same_pool", "cifar_pad2", "cifar_s2", "ydbdr"])
def test_folded_batch_norms_give_the_unfolded_features_behind_every_stem(stem):
    trunk = random_trunk("resnet18", stem, 0).eval()
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2, generator=GENERATOR)
            module.running_var.uniform_(0.5, 2.0, generator=GENERATOR)
    images = torch.rand(2, 3, 48, 48, generator=GENERATOR)
    with torch.no_grad():
        expected, found = trunk(images)["res5"], fold_batch_norm(trunk)(images)["res5"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_every_architecture_the_registry_may_name_can_be_built():
    from typing import get_args

    assert set(get_args(Arch)) == set(ARCHS)
    with torch.device("meta"):
        assert isinstance(build("resnet18x0.5", "lab"), TwoStream)
        assert build("resnet50x2", "imagenet").width == 4096
