"""CMC (HobbitLong/CMC): two networks, one on the lightness of an image and one on its colours, in CIE Lab.

{opt, model, contrast, optimizer, epoch}; `encoder.module.l_to_ab.*` takes 1 channel, `encoder.module.ab_to_l.*` takes 2.
Features are those of both, side by side: 2 x 512 (ResNet-18), 2 x 2048 (ResNet-50), half of it at half width (v1).
The trunk converts colours itself, so the pipeline ends with scale01. Runs with `--view YCbCr` cannot be told from the file
and are not supported.
Layout: models/resnet.py, LinearProbing.py.
"""

from backbones.formats import UNIT, Format

FORMAT = Format(
    pipeline=UNIT, recognised=("model encoder l_to_ab ab_to_l", "l_to_ab ab_to_l"), preferred=("model",), streams="lab"
)
