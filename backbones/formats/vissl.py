"""VISSL.

{phase_idx, iteration, classy_state_dict, ...}, where classy_state_dict.base_model.model.trunk holds `_feature_blocks.*` with
torchvision's names and `heads` stands beside it; an `ema_model` may follow. Zoo files called converted_vissl_* hold
{model_state_dict: {_feature_blocks.*}}. `base_model` is evaluated. Colorisation models with LAYER4_STRIDE 1 are another network
that the file does not show. Sharded files are refused.
Layout: facebookresearch/vissl, vissl/models/trunks/resnext.py, vissl/utils/checkpoint.py.
"""

from backbones.formats import Format

FORMAT = Format(recognised=("classy_state_dict", "_feature_blocks"), preferred=("base_model",))
