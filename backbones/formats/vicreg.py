"""VICReg's training and full checkpoints; its published resnet50.pth has torchvision's names alone.

{epoch, model, optimizer}; `module.backbone.*` is the trunk, `module.projector.*` stands beside it. Its stem pads by 1 and then
by 2, which is torchvision's 3.
Layout: facebookresearch/vicreg, resnet.py, main_vicreg.py, evaluate.py.
"""

from backbones.formats import Format

FORMAT = Format(recognised=("model backbone projector",), preferred=("backbone",))
