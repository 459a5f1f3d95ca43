import pytest
import torch
import torchvision
from networks import lively
from torch import nn
from torchvision.transforms.v2 import functional

from backbones.fast import fold_batch_norm
from backbones.trunk import LEVELS, FrozenBackbone, Trunk, random_trunk, trunk_sha256
from ringbench.errors import UsageError

ARCHS = ["resnet18", "resnet50"]
IMAGES = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def lively_trunk(arch: str = "resnet18", stem: str = "imagenet", seed: int = 1) -> Trunk:
    return lively(random_trunk(arch, stem, seed), seed)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_trunk_is_torchvisions_network_without_its_classifier(arch):
    theirs = getattr(torchvision.models, arch)(weights=None).eval()
    trunk = Trunk(arch).eval()
    trunk.load_state_dict({k: v for k, v in theirs.state_dict().items() if not k.startswith("fc.")}, strict=True)
    theirs.fc = nn.Identity()
    with torch.no_grad():
        x = torch.randn(2, 3, 64, 64)
        assert torch.equal(trunk(x)["res5"].mean((2, 3)), theirs(x))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_folded_batch_norms_give_the_unfolded_features(arch, stem):
    trunk = lively_trunk(arch, stem)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    folded = fold_batch_norm(trunk)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    with torch.no_grad():
        for level, expected in trunk(x).items():
            torch.testing.assert_close(folded(x)[level], expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_levels_have_the_shapes_of_the_resnet_paper():
    backbone = FrozenBackbone(random_trunk("resnet50", "imagenet", 0), {})
    shapes = {level: tuple(value.shape) for level, value in backbone(IMAGES, LEVELS).items()}
    assert shapes == {
        "res2": (3, 256, 16, 16),
        "res3": (3, 512, 8, 8),
        "res4": (3, 1024, 4, 4),
        "res5": (3, 2048, 2, 2),
        "prepool": (3, 2048, 2, 2),
        "pooled": (3, 2048),
    }


def test_the_cifar_stem_keeps_the_resolution():
    assert Trunk("resnet18", "cifar")(torch.zeros(1, 3, 32, 32))["res2"].shape == (1, 64, 32, 32)


def test_pixels_are_scaled_and_normalised_as_the_pipeline_says():
    trunk, mean, std = lively_trunk(), [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    normalised = functional.normalize(IMAGES.double() / 255, mean, std).float()
    with torch.no_grad():
        expected = trunk(normalised)["res5"].mean((2, 3))
    backbone = FrozenBackbone(trunk, {}).for_inputs(scale01=True, mean=mean, std=std)
    torch.testing.assert_close(backbone(IMAGES)["pooled"], expected, rtol=1e-4, atol=1e-4)
    raw = FrozenBackbone(trunk, {}, scale01=False)(IMAGES)["pooled"]
    with torch.no_grad():
        torch.testing.assert_close(raw, trunk(IMAGES.float())["res5"].mean((2, 3)), rtol=1e-3, atol=1e-2)


def test_nothing_thaws_a_frozen_backbone():
    backbone = FrozenBackbone(lively_trunk(), {})
    before, features = trunk_sha256(backbone.trunk), backbone(IMAGES)["pooled"]
    backbone.train()
    backbone.requires_grad_(True)
    nn.Sequential(backbone).train()
    assert not any(module.training for module in backbone.modules())
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    again = backbone(IMAGES)["pooled"]
    assert torch.equal(features, again)
    assert not again.requires_grad
    assert trunk_sha256(backbone.trunk) == before


def test_the_hash_sees_every_weight_and_statistic_but_not_the_step_counter():
    trunk = lively_trunk()
    reference = trunk_sha256(trunk)
    for name, tensor in trunk.state_dict().items():
        if not name.startswith(("bn1", "layer1.0", "layer4.1")):
            continue  # one block is like another
        kept = tensor.clone()
        tensor.view(-1)[0] += 1
        assert (trunk_sha256(trunk) == reference) == name.endswith("num_batches_tracked"), name
        tensor.copy_(kept)
    assert trunk_sha256(trunk) == reference


def test_cudnn_is_used_and_float32_is_not_tf32():
    backbone, seen = FrozenBackbone(random_trunk("resnet18", "imagenet", 0), {}), []
    flags = torch.backends.cudnn
    backbone._running.register_forward_hook(lambda *_: seen.append((flags.enabled, flags.allow_tf32)))
    backbone(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    assert seen == [(True, False)]


def test_random_trunks_follow_their_seed_and_leave_the_callers_random_state_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first = trunk_sha256(random_trunk("resnet18", "imagenet", 3))
    assert torch.equal(torch.rand(1), expected)
    assert trunk_sha256(random_trunk("resnet18", "imagenet", 3)) == first
    assert trunk_sha256(random_trunk("resnet18", "imagenet", 4)) != first


@pytest.mark.parametrize("images", [IMAGES.float(), IMAGES[0], IMAGES[:, :1], IMAGES.permute(0, 2, 3, 1)])
def test_anything_but_uint8_nchw_is_refused(images):
    with pytest.raises(UsageError, match="expected uint8 images"):
        FrozenBackbone(random_trunk("resnet18", "imagenet", 0), {})(images)


def test_half_types_stay_near_float32():
    trunk = lively_trunk()
    exact = FrozenBackbone(trunk, {})(IMAGES)["pooled"]
    half = FrozenBackbone(trunk, {}, dtype=torch.bfloat16)(IMAGES)["pooled"]
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).norm() / exact.norm() < 0.03
