"""DINO with a ResNet-50; the published backbone file has torchvision's names alone.

{student, teacher, optimizer, epoch, args, dino_loss}; in each `module.backbone.*` is the trunk, `module.head.*` its head.
The teacher is evaluated (eval_linear.py, --checkpoint_key).
Layout: facebookresearch/dino, main_dino.py, utils.py, eval_linear.py.
"""

from backbones.formats import Format

FORMAT = Format(
    pipeline="rgb|resize(256,bicubic)|center_crop(224)|scale01|normalize(imagenet)",
    recognised=("student teacher",),
    preferred=("teacher",),
)
