"""PyContrast: InsDis, PIRL, MoCo, MoCo v2 and InfoMin; the contrastive part of HobbitLong/CMC writes the same.

{model, contrast, optimizer, epoch[, model_ema]}; `module.encoder.*` is the trunk, `head` and `head_jig` stand beside it.
`model_ema` lacks `module.`; `model` is evaluated.
Layout: HobbitLong/PyContrast, pycontrast/networks/build_backbone.py and linear_trainer.py.
"""

from backbones.formats import Format

FORMAT = Format(recognised=("model contrast encoder",), preferred=("model",))
