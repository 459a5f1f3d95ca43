"""Features of a loaded checkpoint are those of the network that wrote it, run by the project that defines it."""

import re

import pytest
import torch
import torchvision
from networks import lively
from torch import nn

from backbones import loading
from backbones.certificate import parity
from backbones.spec import BackboneSpec
from backbones.trunk import random_trunk

IMAGES = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def agree(path, tree, forward, **options) -> None:
    torch.save(tree, path)
    spec = BackboneSpec(name="e", title="e", source=str(path), **loading.inspect(path, **options))
    with torch.no_grad():
        expected = forward(IMAGES.float() / 255)
    found = loading.load(spec)(IMAGES)["pooled"]
    assert (found - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize("arch", ["resnet18", "resnet34", "resnet50", "wide_resnet50_2"])
def test_torchvisions_networks(tmp_path, arch):
    torch.manual_seed(0)
    network = lively(getattr(torchvision.models, arch)(weights=None))
    state = network.state_dict()
    network.fc = nn.Identity()
    agree(tmp_path / "enc.pth", state, network)


@pytest.mark.parametrize("arch", ["resnet18", "resnet50"])
def test_timms_networks(tmp_path, arch):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = lively(timm.create_model(arch, num_classes=0))
    agree(tmp_path / "enc.pth", {"state_dict": {}, "state_dict_ema": network.state_dict()}, network)


def test_timms_deep_stem_is_refused_by_its_name(tmp_path):
    timm = pytest.importorskip("timm")
    torch.save(timm.create_model("resnet18d").state_dict(), tmp_path / "enc.pth")
    with pytest.raises(Exception, match=r"deep stem \(timm's resnet\*d\)"):
        loading.inspect(tmp_path / "enc.pth")


def test_lightlys_example_networks(tmp_path):
    """examples/pytorch: the children of torchvision's ResNet in a Sequential, in one of lightly's modules."""
    heads = pytest.importorskip("lightly.models.modules.heads")
    torch.manual_seed(0)
    backbone = lively(nn.Sequential(*list(torchvision.models.resnet18(weights=None).children())[:-1]))
    model = nn.ModuleDict({"backbone": backbone, "projection_head": heads.SimCLRProjectionHead(512, 64, 32)})
    agree(tmp_path / "enc.pth", model.state_dict(), lambda images: backbone(images).flatten(1))


@pytest.mark.parametrize("name", ["resnet-18", "resnet-34", "resnet-50"])
def test_lightlys_own_networks(tmp_path, name):
    resnet = pytest.importorskip("lightly.models.resnet")
    torch.manual_seed(0)
    generator = lively(resnet.ResNetGenerator(name))
    body = list(generator.children())[:-1]

    def forward(images):
        x = images
        for child in body:
            x = child(x)
            x = torch.relu(x) if isinstance(child, nn.BatchNorm2d) else x
        return x.mean((2, 3))

    tensors = {f"backbone.{key}": value for key, value in nn.Sequential(*body).state_dict().items()}
    agree(tmp_path / "enc.pth", tensors | {"projection_head.0.weight": torch.zeros(1)}, forward)


def test_parity_with_torchvision_is_measured_where_it_has_the_network():
    found = parity(random_trunk("resnet18", "imagenet", 0).eval(), "resnet18", "imagenet")
    assert re.fullmatch(r"torchvision [\d.+a-z]+", found["with"])
    assert found["difference"] < 1e-6
    assert parity(random_trunk("resnet18", "cifar", 0), "resnet18", "cifar") is None
    other = random_trunk("resnet18", "same_pool", 0).eval()
    assert parity(other, "resnet18", "imagenet")["difference"] > 1e-3
