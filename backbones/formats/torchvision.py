"""torchvision's own files: a flat state dict with `conv1`, `bn1`, `layer1` .. `layer4` and the classifier `fc`.

Layout: torchvision/models/resnet.py.
"""

from collections.abc import Mapping

from torch import Tensor

PIPELINE = "rgb|resize(256,bilinear)|center_crop(224)|scale01|normalize(imagenet)"
TRUNK = ("conv1.", "bn1.", "layer1.", "layer2.", "layer3.", "layer4.")


def trunk(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(TRUNK)}
