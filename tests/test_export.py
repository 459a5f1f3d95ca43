import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from layouts import LAYOUTS, trunk_state
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, max_pool2d

from backbones import export, loading, reading, resolving
from backbones.spec import BackboneSpec
from backbones.trunk import FrozenBackbone, build
from ringbench.errors import UsageError

PIPELINE = "rgb|resize(256,bilinear)|center_crop(224)|scale01|normalize(imagenet)"
IMAGES = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
ROOT = Path(__file__).resolve().parent.parent


def loaded(tmp_path, layout: str) -> FrozenBackbone:
    wanted = LAYOUTS[layout]
    path = tmp_path / "source.pth"
    torch.save(wanted.save(trunk_state(wanted.arch, wanted.stem, 0), trunk_state(wanted.arch, wanted.stem, 1)), path)
    return loading.load(BackboneSpec(name="e", title="e", source=str(path), **loading.inspect(path)))


def test_equal_trunks_give_equal_bytes_in_any_process(tmp_path):
    torch.save({"state_dict": trunk_state("resnet18")}, tmp_path / "enc.pth")
    program = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from pathlib import Path\n"
        "from test_export import convert\n"
        "convert(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    convert(tmp_path / "enc.pth", tmp_path / "here")
    subprocess.run([sys.executable, "-c", program, tmp_path / "enc.pth", tmp_path / "there"], check=True, cwd=ROOT)
    names = [path.name for path in sorted((tmp_path / "here").iterdir())]
    assert len(names) == 6
    for name in names:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


def convert(source: Path, folder: Path) -> None:
    """Each target, under a name that depends on the folder: names must not become part of a file."""
    spec = BackboneSpec(name="e", title="e", source=str(source), **loading.inspect(source))
    for target in get_args(export.Target):
        export.write(loading.load(spec), target, folder / f"{target}.out", spec.pipeline)


@pytest.mark.parametrize("layout", ["moco", "solo_learn-cifar", "cmc"])
def test_what_is_written_is_the_same_trunk_and_says_what_its_tensors_do_not_show(tmp_path, layout):
    backbone = loaded(tmp_path, layout)
    card = export.write(backbone, "safetensors", tmp_path / "out.safetensors", PIPELINE)
    found = loading.inspect(tmp_path / "out.safetensors")
    assert (found["arch"], found["stem"], found["pipeline"]) == (LAYOUTS[layout].arch, LAYOUTS[layout].stem, PIPELINE)
    again = loading.load(BackboneSpec(name="e", title="e", source=str(tmp_path / "out.safetensors"), **found))
    assert again.certificate["trunk_sha256"] == backbone.certificate["trunk_sha256"]
    assert torch.equal(again(IMAGES)["pooled"], backbone(IMAGES)["pooled"])
    assert json.loads(card.read_text())["certificate"] == backbone.certificate


def test_torchvisions_own_network_takes_what_is_written_for_it(tmp_path):
    import torchvision

    backbone = loaded(tmp_path, "moco")
    card = export.write(backbone, "torchvision", tmp_path / "out.pth", PIPELINE)
    network = torchvision.models.resnet18(weights=None)
    result = network.load_state_dict(torch.load(tmp_path / "out.pth", weights_only=True), strict=False)
    assert result.missing_keys == ["fc.weight", "fc.bias"]
    assert result.unexpected_keys == []
    assert json.loads(card.read_text())["parity"]["difference"] < 1e-6


@pytest.mark.parametrize("arch", ["resnet18", "resnet50"])
def test_detectron2s_pickle_holds_trunk_arrays_alone_and_computes_the_same_stages(tmp_path, arch):
    """CASES C5, E3. The network below is written from Detectron2's names: stem, then res2 .. res5 of conv + norm."""
    state = trunk_state(arch)
    trunk = build(arch, "imagenet").eval()
    trunk.load_state_dict(state)
    backbone = FrozenBackbone(trunk, {"arch": arch, "stem": "imagenet"})
    export.write(backbone, "detectron2", tmp_path / "out.pkl", PIPELINE)
    with (tmp_path / "out.pkl").open("rb") as opened:
        file = ArraysOnly(opened).load()
    assert set(file) == {"model", "__author__", "matching_heuristics"}
    model = file["model"]
    assert all(type(value) is np.ndarray and value.dtype == np.float32 for value in model.values())
    assert {name.split(".")[0] for name in model} == {"stem", "res2", "res3", "res4", "res5"}
    assert len(model) == sum("tracked" not in name for name in state)
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for level, expected in trunk(x).items():
            found = detectron2_forward({name: torch.from_numpy(value) for name, value in model.items()}, x)[level]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize("arch", ["resnet18", "resnet50"])
def test_detectron2s_own_resnet_reads_the_pickle_whole_and_computes_the_same_stages(tmp_path, arch):
    """CASES C5, E3."""
    pytest.importorskip("detectron2", reason="Detectron2 is not installed: bench setup detection")
    from detectron2.checkpoint import DetectionCheckpointer
    from detectron2.config import get_cfg
    from detectron2.modeling import build_backbone

    trunk = build(arch, "imagenet").eval()
    trunk.load_state_dict(trunk_state(arch))
    export.write(FrozenBackbone(trunk, {"arch": arch, "stem": "imagenet"}), "detectron2", tmp_path / "out.pkl", PIPELINE)
    cfg = get_cfg()
    cfg.MODEL.RESNETS.DEPTH, cfg.MODEL.RESNETS.STRIDE_IN_1X1 = int(arch.removeprefix("resnet")), False
    cfg.MODEL.RESNETS.RES2_OUT_CHANNELS = trunk.width // 8
    cfg.MODEL.RESNETS.OUT_FEATURES, cfg.MODEL.BACKBONE.FREEZE_AT = ["stem", "res2", "res3", "res4", "res5"], 5
    theirs = build_backbone(cfg).eval()
    unmatched = DetectionCheckpointer(theirs)._load_model(DetectionCheckpointer(theirs)._load_file(str(tmp_path / "out.pkl")))
    assert unmatched.missing_keys == []
    assert unmatched.unexpected_keys == []
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = theirs(x), trunk(x)
        expected["stem"] = trunk.maxpool(trunk.relu(trunk.bn1(trunk.conv1(x))))
    for level, value in expected.items():
        torch.testing.assert_close(found[level], value, rtol=1e-4, atol=1e-4 * value.abs().max().item())


class ArraysOnly(pickle.Unpickler):
    """Fails for anything but plain values and numpy arrays."""

    def find_class(self, module: str, name: str):
        assert module.split(".")[0] == "numpy", f"{module}.{name}"
        return super().find_class(module, name)


def detectron2_forward(model: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    def layer(x, name, stride, padding):
        x = conv2d(x, model[f"{name}.weight"], stride=stride, padding=padding)
        mean, var, weight, bias = (model[f"{name}.norm.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
        return batch_norm(x, mean, var, weight, bias)

    x = max_pool2d(layer(x, "stem.conv1", 2, 3).relu(), 3, 2, 1)
    stages = {}
    for level in ("res2", "res3", "res4", "res5"):
        for block in range(len({name.split(".")[1] for name in model if name.startswith(f"{level}.")})):
            place, stride = f"{level}.{block}", 2 if block == 0 and level != "res2" else 1
            shortcut = layer(x, f"{place}.shortcut", stride, 0) if f"{place}.shortcut.weight" in model else x
            if f"{place}.conv3.weight" in model:  # STRIDE_IN_1X1 False
                inner = layer(layer(x, f"{place}.conv1", 1, 0).relu(), f"{place}.conv2", stride, 1).relu()
                x = (layer(inner, f"{place}.conv3", 1, 0) + shortcut).relu()
            else:
                x = (layer(layer(x, f"{place}.conv1", stride, 1).relu(), f"{place}.conv2", 1, 1) + shortcut).relu()
        stages[level] = x
    return stages


def test_what_is_written_for_detectron2_is_read_back(tmp_path):
    backbone = loaded(tmp_path, "moco")
    export.write(backbone, "detectron2", tmp_path / "out.pkl", PIPELINE)
    found = resolving.resolve(reading.read(tmp_path / "out.pkl").tree, "out.pkl")
    assert (found.format, found.arch) == ("detectron2", "resnet18")
    assert all(torch.equal(found.tensors[name], backbone.trunk.state_dict()[name]) for name in found.tensors)


@pytest.mark.parametrize(("stem", "target"), [("cifar", "detectron2"), ("lab", "detectron2"), ("same", "torchvision")])
def test_a_target_without_such_a_network_is_refused(tmp_path, stem, target):
    backbone = FrozenBackbone(build("resnet18", stem), {"arch": "resnet18", "stem": stem, "source": "enc.pth"})
    with pytest.raises(UsageError, match=f"{target} has no ResNet with the stem {stem}"):
        export.write(backbone, target, tmp_path / "out", PIPELINE)
    assert list(tmp_path.iterdir()) == []
