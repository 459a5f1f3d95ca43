"""Caffe2's names, where the stride is on the 3x3 convolutions; said by hand, because nothing in a file tells (MSRA's has it on
the 1x1). Pixels go in as BGR in 0..255 with the mean subtracted.

`conv1_w`, `res_conv1_bn_{s,b,rm,riv}`, `res2_0_branch2a_w`, `res2_0_branch2a_bn_s`, `res2_0_branch1_*` for the shortcut; bare or
in `blobs`. Files without running statistics, which were folded, do not fill the trunk.
Layout: facebookresearch/detectron2, detectron2/checkpoint/c2_model_loading.py; pipeline: detectron2/config/defaults.py.
"""

import re
from collections.abc import Collection

from backbones.formats import Format

VALUES = {"w": "weight", "s": "weight", "b": "bias", "rm": "running_mean", "riv": "running_var"}
NAME = re.compile(r"(?:(?:res_)?conv1|res([2-5])_(\d+)_branch(1|2[abc]))(_bn)?_(w|s|b|rm|riv)$")


def rename(names: Collection[str]) -> dict[str, str]:
    return {name: name[: found.start()] + _name(*found.groups()) for name in names if (found := NAME.search(name))}


def _name(stage: str | None, block: str, branch: str, norm: str | None, value: str) -> str:
    kind, what = "bn" if norm else "conv", VALUES[value]
    if stage is None:
        return f"{kind}1.{what}"
    place = f"layer{int(stage) - 1}.{block}"
    if branch == "1":
        return f"{place}.downsample.{1 if norm else 0}.{what}"
    return f"{place}.{kind}{'abc'.index(branch[1]) + 1}.{what}"


FORMAT = Format(pipeline="bgr|resize(256,bilinear)|center_crop(224)|normalize(103.53,116.28,123.675;1,1,1)", rename=rename)
