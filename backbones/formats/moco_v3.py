"""MoCo v3 (ResNet-50).

{epoch, arch, state_dict, optimizer, scaler}; `module.base_encoder.*` is the trunk with its projector `fc`; beside it
`momentum_encoder` and `predictor`. The base encoder is evaluated.
Layout: facebookresearch/moco-v3, moco/builder.py and main_lincls.py.
"""

from backbones.formats import Format

FORMAT = Format(recognised=("base_encoder",), preferred=("base_encoder",))
