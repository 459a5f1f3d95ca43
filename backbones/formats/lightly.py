"""lightly: benchmark and example checkpoints (PyTorch Lightning), and its own small ResNets.

{state_dict, pytorch-lightning_version, ...}; `backbone.*` is the trunk, under torchvision's names in the benchmarks and in
numbers in the examples; `key_backbone`, `teacher_backbone` or `student_backbone` stand
beside it. `backbone` is evaluated; in the DINO
benchmark it is the teacher. lightly's own ResNetGenerator has a 3x3 stem padded by 1.
Layout: lightly-ai/lightly, benchmarks/imagenet/resnet50, examples/pytorch, lightly/models/resnet.py.
"""

from backbones.formats import Format

FORMAT = Format(
    recognised=("backbone projection_head pytorch-lightning_version", "backbone online_classifier", "backbone projection_head"),
    preferred=("backbone",),
)
