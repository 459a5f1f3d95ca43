"""torchvision, and every file that holds a network under torchvision's names alone.

`conv1.weight`, `bn1.*`, `layer1.0.conv1.weight` .. `layer4.*`; beside them the classifier `fc.*`. Bare or in any container.
Files of this kind are also those published for Barlow Twins, VICReg and DINO, what `bench convert` and `bench pretrain` write,
and whatever no other format recognises.
Layout: torchvision/models/resnet.py; pipeline: torchvision/transforms/_presets.py (v2 weights: resize(232,bilinear)).
"""

from backbones.formats import Format

FORMAT = Format()
