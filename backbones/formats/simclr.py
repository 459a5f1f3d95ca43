"""SimCLR v1 and v2 as Google published them, in three conversions. Pixels go in as 0..1, without mean and std.

tonylins/simclr-converter  {state_dict: torchvision's names}: nothing marks it, so say `format: simclr`
Separius/SimCLRv2-Pytorch  {resnet, head}: `net.0.0.weight` stem, `net.S.blocks.B.net.{0,2,4}` convolutions, `.{1,3,5}.0` norms,
                           `net.S.blocks.0.projection.{shortcut, bn.0}`
TensorFlow variables       `base_model/conv2d_N/kernel`, `base_model/batch_normalization_N/gamma` in an .npz, numbered in the
                           order of creation; in the first block of a stage the shortcut comes before the others
The network pads its max pooling as TensorFlow does (`same_pool`). PyTorch evaluations of the conversions pad as torch does;
to compare with their numbers, say `stem: imagenet`. Models with selective kernels (sk1) are another network.
Layout: google-research/simclr, resnet.py and data_util.py; the converters' repositories.
"""

import re
from collections.abc import Collection

from backbones.formats import UNIT, Format, hwio, substitute

BLOCKS = {53: (3, 4, 6, 3), 104: (3, 4, 23, 3), 155: (3, 8, 36, 3)}  # by the number of convolutions
NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
PYTORCH = (
    (r"(^|\.)net\.0\.0\.weight$", r"\1conv1.weight"),
    (r"(^|\.)net\.0\.1\.0\.", r"\1bn1."),
    (r"(^|\.)net\.([1-4])\.blocks\.", r"\1layer\2."),
    (r"\.projection\.shortcut\.", ".downsample.0."),
    (r"\.projection\.bn\.0\.", ".downsample.1."),
)


def rename(names: Collection[str]) -> dict[str, str]:
    kernels = sum(re.search(r"(^|\.)base_model/conv2d(_\d+)?/kernel$", name) is not None for name in names)
    if kernels in BLOCKS:
        return _tensorflow(names, _order(BLOCKS[kernels]))
    renamed = {}
    for name in names:
        new = substitute(name, PYTORCH)
        new = re.sub(r"(layer\d\.\d+)\.net\.([024])\.", lambda m: f"{m[1]}.conv{int(m[2]) // 2 + 1}.", new)
        new = re.sub(r"(layer\d\.\d+)\.net\.([135])\.0\.", lambda m: f"{m[1]}.bn{int(m[2]) // 2 + 1}.", new)
        renamed[name] = new
    return renamed


def _order(blocks: tuple[int, ...]) -> list[tuple[str, str]]:
    """The convolutions of a bottleneck ResNet in the order of creation, each with its norm."""
    order = [("conv1", "bn1")]
    for stage, count in enumerate(blocks, start=1):
        for block in range(count):
            place = f"layer{stage}.{block}"
            order += [(f"{place}.downsample.0", f"{place}.downsample.1")] if block == 0 else []
            order += [(f"{place}.conv{i}", f"{place}.bn{i}") for i in (1, 2, 3)]
    return order


def _tensorflow(names: Collection[str], order: list[tuple[str, str]]) -> dict[str, str]:
    renamed = {}
    for name in names:
        found = re.search(r"(^|\.)base_model/(conv2d|batch_normalization)(?:_(\d+))?/(\w+)$", name)
        if found and int(found[3] or 0) < len(order):
            convolution, norm = order[int(found[3] or 0)]
            what = f"{convolution}.weight" if found[2] == "conv2d" else f"{norm}.{NORM.get(found[4], found[4])}"
            renamed[name] = f"{name[: found.start()]}{found[1]}base_model.{what}"
    return renamed


def reshape(name: str, tensor):
    """TensorFlow's kernels alone have their height and width first."""
    kernel = tensor.ndim == 4 and tensor.shape[0] == tensor.shape[1] <= 7
    return hwio(name, tensor) if kernel else tensor


FORMAT = Format(
    pipeline=UNIT,
    recognised=("resnet head net", "base_model/conv2d/kernel"),
    preferred=("resnet", "base_model"),
    large="same_pool",
    rename=rename,
    reshape=reshape,
)
