"""Local Aggregation (neuroailab/LocalAggregation-Pytorch), where it was trained with torchvision's ResNet.

{model_state_dict, optim_state_dict, memory_bank, cluster_labels, ...}; `module.*` has torchvision's names. Fine-tuning writes
`resnet_state_dict` with numbers for names. The configuration that comes with the code trains a pre-activation ResNet-18, which
is another network and is refused as such.
Layout: src/agents/agents.py, src/models/preact_resnet.py.
"""

from backbones.formats import Format

FORMAT = Format(
    recognised=("model_state_dict memory_bank", "resnet_state_dict model_state_dict"),
    preferred=("resnet_state_dict", "model_state_dict"),
)
