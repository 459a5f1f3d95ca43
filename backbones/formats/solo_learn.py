"""solo-learn (PyTorch Lightning).

{state_dict, pytorch-lightning_version, ...}; `backbone.*` (`encoder.*` in old files) is the trunk; beside it `classifier`,
`projector`, `momentum_backbone`, `queue` and others. `backbone` is evaluated.
For CIFAR it has a 3x3 stem padded by 2, not by 1 as elsewhere; the tensors do not show it, so say `format: solo_learn` where it
is not recognised. Its CIFAR runs take 32-pixel images without resizing, normalised with CIFAR's own statistics.
Layout: vturrisi/solo-learn, solo/methods/base.py, main_linear.py, solo/data/classification_dataloader.py.
"""

from backbones.formats import Format

FORMAT = Format(
    recognised=("pytorch-lightning_version backbone classifier", "momentum_backbone classifier"),
    preferred=("backbone", "encoder"),
    small="cifar_pad2",
)
