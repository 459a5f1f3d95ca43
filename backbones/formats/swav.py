"""SwAV, DeepCluster v2 and SeLa v2.

A bare state dict, or {epoch, state_dict, optimizer}: `module.*` with torchvision's names, `projection_head`, `prototypes`,
no `fc`.
Its stem pads by 1 and then by 2, which is torchvision's 3. Its std of the first channel is 0.228, not 0.229.
Layout: facebookresearch/swav, src/resnet50.py, eval_linear.py, hubconf.py.
"""

from backbones.formats import Format

FORMAT = Format(
    pipeline="rgb|resize(256,bilinear)|center_crop(224)|scale01|normalize(0.485,0.456,0.406;0.228,0.224,0.225)",
    recognised=("projection_head prototypes",),
)
