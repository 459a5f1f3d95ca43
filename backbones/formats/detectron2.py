"""Detectron2's pickle of a ResNet, as converters from PyTorch write it.

{model: {name: array}, __author__, matching_heuristics}; `stem.conv1.weight`, `stem.conv1.norm.*`, `res2.0.conv1.weight`,
`res2.0.conv1.norm.*`, `res2.0.shortcut.*`; in a detector under `backbone.bottom_up` or `backbone`.
Layout: facebookresearch/detectron2, tools/convert-torchvision-to-d2.py; facebookresearch/moco, detection/.
"""

import re
from collections.abc import Collection

from backbones.formats import Format, substitute

RULES = (
    (r"(^|\.)stem\.conv1\.norm\.", r"\1bn1."),
    (r"(^|\.)stem\.conv1\.", r"\1conv1."),
    (r"\.conv(\d)\.norm\.", r".bn\1."),
    (r"\.shortcut\.norm\.", ".downsample.1."),
    (r"\.shortcut\.", ".downsample.0."),
)


def rename(names: Collection[str]) -> dict[str, str]:
    renamed = {}
    for name in names:
        new = re.sub(r"(^|\.)res([2-5])\.", lambda found: f"{found[1]}layer{int(found[2]) - 1}.", name)
        renamed[name] = substitute(new, RULES)
    return renamed


FORMAT = Format(
    recognised=("__author__ stem res2", "stem res2"),
    preferred=("model.backbone.bottom_up", "model"),
    rename=rename,
)
