"""The authors' code of Ring (Wu et al. 2021): mhw32/contrastive-ring-public, and its sibling temperature-as-uncertainty-public.

PyTorch Lightning: {state_dict, ...}; `model.features.*` is the trunk in numbers for names, `model.l1` and `model.l2` the
projection, `memory_bank._bank` or `model_k` and `queue` the negatives. `model` is evaluated.
A run with `conv3x3: true` has a 3x3 stem padded by 1. Inputs are normalised with ImageNet's statistics, whatever the set.
Layout: src/models/resnet2.py, src/systems/systems.py, src/objectives/memory.py.
"""

from backbones.formats import Format

FORMAT = Format(recognised=("model features l1 l2",), preferred=("model",))
