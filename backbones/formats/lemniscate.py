"""Instance discrimination (zhirongw/lemniscate.pytorch).

ImageNet: {epoch, arch, state_dict, lemniscate, best_prec1, optimizer}, where `lemniscate` is a whole pickled module, the memory
bank; `module.*` has torchvision's names with an `fc` of 128 outputs. CIFAR: {net, lemniscate, acc, epoch} with a 3x3 stem,
`shortcut` for `downsample` and `linear` for `fc`.
Layout: main.py, cifar.py, models/resnet.py, models/resnet_cifar.py.
"""

from backbones.formats import Format

FORMAT = Format(recognised=("lemniscate",), preferred=("state_dict", "net"))
