"""MoCo v1 and v2, and PCL, which keeps MoCo's layout.

{epoch, arch, state_dict, optimizer}; `module.encoder_q.*` is the trunk with its head `fc`; a training checkpoint also has the
momentum encoder `encoder_k` and `queue`. The query encoder is evaluated.
Layout: facebookresearch/moco, moco/builder.py and main_lincls.py; salesforce/PCL, pcl/builder.py and eval_cls_imagenet.py.
"""

from backbones.formats import Format

FORMAT = Format(recognised=("encoder_q",), preferred=("encoder_q",))
