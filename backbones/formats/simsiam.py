"""SimSiam.

{epoch, arch, state_dict, optimizer}; `module.encoder.*` is the trunk with its projector `fc`; beside it `module.predictor.*`.
Layout: facebookresearch/simsiam, simsiam/builder.py and main_lincls.py.
"""

from backbones.formats import Format

FORMAT = Format(recognised=("state_dict encoder predictor",), preferred=("encoder",))
