"""timm's training checkpoints. Its plain ResNets have torchvision's names, so a file from its hub is one of `torchvision`.

Weights are in `state_dict` or `model`, their moving average in `state_dict_ema` or `model_ema`, which timm evaluates.
The pipeline differs from model to model (`timm.data.resolve_model_data_config`); this one is that of the A1 weights.
resnet*d and SE variants are other networks and are refused.
Layout: timm/models/_helpers.py (load_state_dict), timm/models/resnet.py (default_cfgs).
"""

from backbones.formats import Format

FORMAT = Format(
    pipeline="rgb|resize(235,bicubic)|center_crop(224)|scale01|normalize(imagenet)",  # crop_pct 0.95 at 224
    recognised=("state_dict_ema",),
    preferred=("state_dict_ema", "model_ema"),
)
