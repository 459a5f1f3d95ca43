"""BYOL in PyTorch: lucidrains/byol-pytorch and yaox12/BYOL-PyTorch.

lucidrains: the learner has `net.*` and the same tensors again in `online_encoder.net.*`; `target_encoder.net.*` is the average.
yaox12: {model, optimizer, ...} with `module.online_network.encoder.*` in numbers for names, `target_network`, `predictor`.
The online network is evaluated. For DeepMind's own files see byol_haiku; byol-convert makes torchvision's names of them.
Layout: the two repositories' byol_pytorch.py, trainer/byol_trainer.py and utils/load_and_convert.py.
"""

from backbones.formats import Format

ONLINE = ("online_encoder", "online_network", "online_backbone")
FORMAT = Format(recognised=ONLINE, preferred=(*ONLINE, "net"))
