"""Barlow Twins' training checkpoint; its published resnet50.pth has torchvision's names alone.

{epoch, model, optimizer}; `module.backbone.*` is the trunk; beside it `projector` and the norm `bn` without weights.
Layout: facebookresearch/barlowtwins, main.py and evaluate.py.
"""

from backbones.formats import Format

FORMAT = Format(recognised=("model backbone projector bn",), preferred=("backbone",))
