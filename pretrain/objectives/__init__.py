"""What an encoder is trained to do: one objective, one file, found by name. Adding one is a file here and a line below."""

import importlib

from ringbench.errors import UsageError

OBJECTIVES = {
    "ir": "pretrain.objectives.instance_discrimination:InstanceDiscrimination",
    "cmc": "pretrain.objectives.cmc:CMC",
    "moco": "pretrain.objectives.moco:MoCo",
    "simclr": "pretrain.objectives.simclr:SimCLR",
    "la": "pretrain.objectives.local_aggregation:LocalAggregation",
    "dcl": "pretrain.objectives.decoupled:DCL",
    "dclw": "pretrain.objectives.decoupled:DCLW",
    "balanced": "pretrain.objectives.balanced:Balanced",
    "supervised": "pretrain.objectives.supervised:Supervised",
}


def get(name: str) -> type:
    """The class of an objective (`pretrain.objectives.objective.Objective`) by its name."""
    if name not in OBJECTIVES:
        raise UsageError(f"unknown objective {name!r}; expected {', '.join(OBJECTIVES)}")
    module, _, attribute = OBJECTIVES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
