"""BYOL as DeepMind published it (JAX, dm-haiku; a dill pickle).

{experiment_state, step, rng}; the state is a tuple of online_params, target_params, online_state, target_state, opt_state.
Parameters are {module: {w}} with (H, W, I, O) kernels and {scale, offset}; statistics are under `<norm>/~/mean_ema` and
`var_ema`, where `average` counts. online_params and online_state are evaluated.
Convolutions and pooling of stride 2 are padded as TensorFlow does (`same`), which a plain torchvision network is not.
Layout: google-deepmind/deepmind-research, byol/byol_experiment.py and byol/eval_experiment.py; dm-haiku, nets/resnet.py.
"""

import re
from collections.abc import Collection

from backbones.formats import Format, hwio

PARTS = {"[0]": "online", "[1]": "target", "[2]": "online", "[3]": "target"}  # params, params, state, state
VALUES = {
    "w": "weight",
    "scale": "weight",
    "offset": "bias",
    "mean_ema.average": "running_mean",
    "var_ema.average": "running_var",
}
VALUE = re.compile(r"(?:/~/(mean_ema|var_ema)\.average|\.(w|scale|offset))$")
BLOCK = re.compile(r"block_group_(\d)/.*block_(\d+)/~/(?:(conv|batchnorm)_(\d)|shortcut_(conv|batchnorm))$")
STEM = re.compile(r"initial_(conv|batchnorm)(?:_1)?$")


def rename(names: Collection[str]) -> dict[str, str]:
    return {name: new for name in names if (new := _renamed(name))}


def _renamed(name: str) -> str | None:
    part = re.search(r"experiment_state\.(\[[0-3]\])|(online|target)_(?:params|state)\b", name)
    value = VALUE.search(name)
    if not part or not value:
        return None
    where = _module(name[: value.start()])
    what = VALUES[f"{value[1]}.average" if value[1] else value[2]]
    return where and f"{PARTS.get(part[1]) or part[2]}.{where}.{what}"


def _module(path: str) -> str | None:
    if found := STEM.search(path):
        return "conv1" if found[1] == "conv" else "bn1"
    if found := BLOCK.search(path):
        place = f"layer{int(found[1]) + 1}.{found[2]}"
        if found[5]:
            return f"{place}.downsample.{0 if found[5] == 'conv' else 1}"
        return f"{place}.{'conv' if found[3] == 'conv' else 'bn'}{int(found[4]) + 1}"
    return None


FORMAT = Format(
    pipeline="rgb|resize(256,bicubic)|center_crop(224)|scale01|normalize(imagenet)",
    recognised=("experiment_state", "online_params online_state"),
    preferred=("online",),
    large="same",
    rename=rename,
    reshape=hwio,
)
