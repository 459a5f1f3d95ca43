"""mmselfsup, mmpretrain and OpenSelfSup.

{meta, state_dict}; `backbone.*` is the trunk; beside it `neck`, `head`, momentum copies as `encoder_k.module.0` or
`target_net.module.0`, and in training files `ema_state_dict`. `backbone` is evaluated. The network input is RGB.
`style='caffe'` puts the stride on the 1x1 convolutions, another network that the file does not show.
Layout: open-mmlab/mmpretrain, mmpretrain/models/selfsup, tools/model_converters/publish_model.py.
"""

from backbones.formats import Format

FORMAT = Format(
    recognised=("meta state_dict backbone", "backbone neck"),
    preferred=("state_dict.backbone", "backbone"),
)
