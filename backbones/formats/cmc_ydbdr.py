"""CMC as PyContrast trains it: the colour space is YDbDr, not Lab.

{model, contrast, optimizer, epoch}; `module.encoder1.*` takes lightness, `module.encoder2.*` the two colour channels.
Half width unless trained as x2. Features are those of both networks, side by side.
Layout: HobbitLong/PyContrast, pycontrast/networks/build_backbone.py and datasets/util.py.
"""

import re
from collections.abc import Collection

from backbones.formats import UNIT, Format

STREAM = {"encoder1": "l_to_ab", "encoder2": "ab_to_l"}


def rename(names: Collection[str]) -> dict[str, str]:
    return {name: re.sub(r"\bencoder[12]\b", lambda found: STREAM[found[0]], name) for name in names}


FORMAT = Format(
    pipeline=UNIT, recognised=("model encoder1 encoder2",), preferred=("model", "model_ema"), streams="ydbdr", rename=rename
)
