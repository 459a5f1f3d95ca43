"""Checkpoints as each project saves them, made from random networks: names and containers come from the projects' sources, which
the file of each format in backbones/formats names."""

import argparse
import functools
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from backbones.trunk import build

State = dict[str, Tensor]


@functools.cache
def trunk_state(arch: str = "resnet18", stem: str = "imagenet", seed: int = 0) -> State:
    """A trunk none of whose tensors is like another one."""
    with torch.device("meta"):
        trunk = build(arch, stem)
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in trunk.state_dict().items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(100 + seed)
        elif name.endswith("running_var"):
            state[name] = torch.rand(tensor.shape, generator=generator) + 0.5
        else:
            scale = (6 / max(tensor[0].numel(), 1)) ** 0.5
            state[name] = torch.empty(tensor.shape).uniform_(-scale, scale, generator=generator)
    return state


def under(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def head(*names: str) -> State:
    return {name: torch.randn(8, 4) for name in names}


def numbered(state: State, first: int = 4) -> State:
    """The names of nn.Sequential(*list(network.children())[:-1])."""
    numbers = {"conv1": "0", "bn1": "1"} | {f"layer{i + 1}": str(first + i) for i in range(4)}
    return {".".join([numbers[name.partition(".")[0]], name.partition(".")[2]]): tensor for name, tensor in state.items()}


def kuangliu(state: State) -> State:
    return {name.replace("downsample", "shortcut"): tensor for name, tensor in state.items()}


def lightning(state: State) -> dict:
    return {"epoch": 9, "global_step": 99, "pytorch-lightning_version": "2.1.0", "state_dict": state, "loops": {}}


def moco_like(prefix: str, twin: str, state: State, other: State, *extra: str) -> dict:
    tensors = under(f"module.{prefix}.", state | head("fc.weight")) | under(f"module.{twin}.", other) | head(*extra)
    return {"epoch": 200, "arch": "resnet50", "state_dict": OrderedDict(tensors), "optimizer": {"state": {0: head("buf")}}}


def separius(state: State) -> State:
    """Separius/SimCLRv2-Pytorch: positions in its Sequentials."""
    renamed = {}
    for name, tensor in state.items():
        new = re.sub(r"^conv1", "net.0.0", re.sub(r"^bn1", "net.0.1.0", re.sub(r"^layer", "net.", name)))
        new = re.sub(r"^(net\.[1-4])\.(\d+)", r"\1.blocks.\2", new)
        new = new.replace("downsample.0", "projection.shortcut").replace("downsample.1", "projection.bn.0")
        new = re.sub(r"(blocks\.\d+)\.conv(\d)", lambda m: f"{m[1]}.net.{2 * int(m[2]) - 2}", new)
        renamed[re.sub(r"(blocks\.\d+)\.bn(\d)", lambda m: f"{m[1]}.net.{2 * int(m[2]) - 1}.0", new)] = tensor
    return renamed


def creation_order(state: State) -> list[str]:
    """The modules of a bottleneck ResNet as google-research/simclr makes them: a block's shortcut, then its other layers."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in state))
    kind = {"conv": 0, "downsample.0": 0, "bn": 1, "downsample.1": 1}
    convolutions = [m for m in modules if not kind[re.sub(r"\d+$", "", m.split(".")[-1]) if "down" not in m else m[-12:]]]

    def block(module: str) -> tuple:
        parts = module.split(".")
        return (parts[0] != "conv1", parts[0], int(parts[1]) if len(parts) > 1 else 0, "downsample" not in module, parts[-1])

    return sorted(convolutions, key=block)


def norm_of(convolution: str) -> str:
    return convolution[:-1] + "1" if "downsample" in convolution else convolution.replace("conv", "bn")


def tensorflow(state: State) -> dict[str, np.ndarray]:
    values = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
    variables = {"global_step": np.array(7), "head_supervised/linear_layer/dense/kernel": np.zeros((4, 3), "f4")}
    for i, convolution in enumerate(creation_order(state)):
        number = f"_{i}" if i else ""
        kernel = state[f"{convolution}.weight"].permute(2, 3, 1, 0).contiguous().numpy()
        variables[f"base_model/conv2d{number}/kernel"] = kernel
        variables[f"base_model/conv2d{number}/kernel/Momentum"] = kernel + 1
        for theirs, ours in values.items():
            variables[f"base_model/batch_normalization{number}/{theirs}"] = state[f"{norm_of(convolution)}.{ours}"].numpy()
    return variables


def haiku(state: State) -> tuple[dict, dict]:
    """Parameters and statistics of dm-haiku's ResNet."""
    params, statistics = defaultdict(dict), {}
    for name, tensor in state.items():
        module, _, value = name.rpartition(".")
        found = re.match(r"layer(\d)\.(\d+)\.(?:(conv|bn)(\d)|downsample\.(\d))$", module)
        if found:
            stage, block, kind, number, shortcut = found.groups()
            kind = {"conv": "conv", "bn": "batchnorm", None: "conv" if shortcut == "0" else "batchnorm"}[kind]
            layer = f"shortcut_{kind}" if shortcut else f"{kind}_{int(number) - 1}"
            path = f"res_net50/~/block_group_{int(stage) - 1}/~/block_{block}/~/{layer}"
        else:
            path = f"res_net50/~/initial_{'conv' if module == 'conv1' else 'batchnorm'}"
        array = tensor.numpy()
        if array.ndim == 4:
            params[path]["w"] = array.transpose(2, 3, 1, 0)
        elif value in ("weight", "bias"):
            params[path]["scale" if value == "weight" else "offset"] = array.reshape(1, 1, 1, -1)
        elif value in ("running_mean", "running_var"):
            average = array.reshape(1, 1, 1, -1)
            ema = {"hidden": average * 0.9, "average": average, "counter": np.array(3)}
            statistics[f"{path}/~/{'mean' if value == 'running_mean' else 'var'}_ema"] = ema
    params["projector/linear"] = {"w": np.zeros((4, 4), "f4")}
    return dict(params), statistics


def detectron2(state: State) -> dict:
    """facebookresearch/moco, detection/: its substitutions, in its order."""
    model = {}
    for name, tensor in state.items():
        new = name if "layer" in name else f"stem.{name}"
        for t in (1, 2, 3, 4):
            new = new.replace(f"layer{t}", f"res{t + 1}")
        for t in (1, 2, 3):
            new = new.replace(f"bn{t}", f"conv{t}.norm")
        model[new.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")] = tensor.numpy()
    return {"model": model, "__author__": "someone", "matching_heuristics": True}


def caffe2(state: State) -> dict:
    values = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}
    blobs = {}
    for name, tensor in state.items():
        module, _, value = name.rpartition(".")
        if value not in values:
            continue
        norm = "bn" in module or "downsample.1" in module
        found = re.match(r"layer(\d)\.(\d+)\.(?:(?:conv|bn)(\d)|downsample)", module)
        if found:
            branch = f"2{'abc'[int(found[3]) - 1]}" if found[3] else "1"
            place = f"res{int(found[1]) + 1}_{found[2]}_branch{branch}"
        else:
            place = "res_conv1" if norm else "conv1"
        blobs[f"{place}_bn_{values[value]}" if norm else f"{place}_w"] = tensor.numpy()
    return {"blobs": blobs}


class Layout(NamedTuple):
    """`save(state, other)` puts a trunk into a checkpoint, beside the `other` one where the project saves two."""

    format: str
    save: Callable[[State, State], Any]
    arch: str = "resnet18"
    stem: str = "imagenet"
    detected: bool = True  # False where only `--format` can tell


LAYOUTS: dict[str, Layout] = {
    "torchvision": Layout("torchvision", lambda s, o: s | head("fc.weight", "fc.bias")),
    "torchvision-34": Layout("torchvision", lambda s, o: s, "resnet34"),
    "torchvision-old": Layout("torchvision", lambda s, o: {n: t for n, t in s.items() if "tracked" not in n}),
    "moco-linear": Layout("torchvision", lambda s, o: {"arch": "r", "state_dict": under("module.", s | head("fc.weight"))}),
    "pickled-module": Layout("torchvision", lambda s, o: {"model": _module(s)}),
    "timm": Layout("timm", lambda s, o: {"epoch": 1, "state_dict": o, "state_dict_ema": s, "args": argparse.Namespace(lr=1)}),
    "moco": Layout("moco", lambda s, o: moco_like("encoder_q", "encoder_k", s, o, "module.queue", "module.queue_ptr")),
    "moco_v3": Layout("moco_v3", lambda s, o: moco_like("base_encoder", "momentum_encoder", s, o, "module.predictor.0.weight")),
    "simclr-converter": Layout("simclr", lambda s, o: {"state_dict": s}, "resnet50", "same_pool", detected=False),
    "simclr-separius": Layout(
        "simclr", lambda s, o: {"resnet": separius(s), "head": head("layers.0.weight")}, "resnet50", "same_pool"
    ),
    "simclr-tensorflow": Layout("simclr", lambda s, o: tensorflow(s), "resnet50", "same_pool"),
    "cmc": Layout("cmc", lambda s, o: _cmc(s), "resnet18x0.5", "lab"),
    "cmc-full": Layout("cmc", lambda s, o: _cmc(s), "resnet18", "lab"),
    "cmc_ydbdr": Layout(
        "cmc_ydbdr",
        lambda s, o: {
            "model": {
                f"module.{n}": t
                for n, t in (
                    _renamed(s, "l_to_ab", "encoder1") | _renamed(s, "ab_to_l", "encoder2") | head("head1.weight")
                ).items()
            },
            "contrast": head("params"),
        },
        "resnet18x0.5",
        "ydbdr",
    ),
    "pycontrast": Layout(
        "pycontrast",
        lambda s, o: {
            "model": under("module.", under("encoder.", s) | head("head.0.weight", "head_jig.0.weight")),
            "model_ema": under("encoder.", o),
            "contrast": head("memory"),
            "epoch": 1,
        },
    ),
    "lemniscate": Layout(
        "lemniscate",
        lambda s, o: {"state_dict": under("module.", s | head("fc.weight")), "lemniscate": nn.Linear(4, 8), "best_prec1": 1.0},
    ),
    "lemniscate-cifar": Layout(
        "lemniscate",
        lambda s, o: {"net": kuangliu(under("module.", s | head("linear.weight"))), "lemniscate": nn.Linear(4, 8), "acc": 1},
        stem="cifar",
    ),
    "local_aggregation": Layout(
        "local_aggregation",
        lambda s, o: {"model_state_dict": under("module.", s | head("fc.weight")), "memory_bank": nn.Linear(4, 8), "epoch": 1},
    ),
    "local_aggregation-finetune": Layout(
        "local_aggregation",
        lambda s, o: {"resnet_state_dict": numbered(under("", s)), "model_state_dict": head("fc.weight")},
    ),
    "byol-lucidrains": Layout(
        "byol",
        lambda s, o: (
            under("learner.net.", s)
            | under("learner.online_encoder.net.", s)
            | under("learner.target_encoder.net.", o)
            | head("learner.online_predictor.0.weight")
        ),
    ),
    "byol-yaox12": Layout(
        "byol",
        lambda s, o: {
            "model": under("module.online_network.encoder.", numbered(s))
            | under("module.target_network.encoder.", numbered(o))
            | head("module.online_network.projetion.0.weight")
        },
    ),
    "byol_haiku": Layout(
        "byol_haiku",
        lambda s, o: {
            "experiment_state": dict(
                zip(
                    ("online_params", "online_state", "target_params", "target_state"),
                    (*haiku(s), *haiku(o)),
                    strict=True,
                )
            ),
            "step": 3,
        },
        "resnet50",
        "same",
    ),
    "barlow": Layout(
        "barlow",
        lambda s, o: {
            "epoch": 1,
            "model": under("module.backbone.", s) | head("module.projector.0.weight", "module.bn.running_mean"),
        },
    ),
    "vicreg": Layout("vicreg", lambda s, o: {"model": under("module.backbone.", s) | head("module.projector.0.weight")}),
    "dino": Layout(
        "dino",
        lambda s, o: {
            "student": under("module.backbone.", o) | head("module.head.mlp.0.weight"),
            "teacher": under("module.backbone.", s) | head("module.head.mlp.0.weight"),
            "args": argparse.Namespace(arch="resnet50"),
            "dino_loss": head("center"),
        },
    ),
    "simsiam": Layout(
        "simsiam",
        lambda s, o: {"state_dict": under("module.encoder.", s | head("fc.0.weight")) | head("module.predictor.0.weight")},
    ),
    "vissl": Layout(
        "vissl",
        lambda s, o: {
            "phase_idx": 1,
            "classy_state_dict": {
                "base_model": {"model": {"trunk": under("_feature_blocks.", s), "heads": head("0.clf.0.weight")}, "meta": {}},
                "ema_model": {"model": {"trunk": under("_feature_blocks.", o), "heads": {}}},
            },
        },
    ),
    "vissl-converted": Layout("vissl", lambda s, o: {"model_state_dict": under("_feature_blocks.", s)}),
    "lightly": Layout(
        "lightly",
        lambda s, o: lightning(
            under("backbone.", s) | under("key_backbone.", o) | head("projection_head.0.w", "online_classifier.w")
        ),
    ),
    "lightly-dino": Layout(
        "lightly", lambda s, o: lightning(under("student_backbone.", o) | under("backbone.", s) | head("projection_head.0.w"))
    ),
    "lightly-example": Layout("lightly", lambda s, o: under("backbone.", numbered(s)) | head("projection_head.layers.0.weight")),
    "lightly-own": Layout(
        "lightly",
        lambda s, o: under("backbone.", numbered(kuangliu(s), 2)) | head("projection_head.layers.0.weight"),
        stem="cifar",
    ),
    "solo_learn": Layout(
        "solo_learn",
        lambda s, o: lightning(
            under("backbone.", s) | under("momentum_backbone.", o) | head("classifier.weight", "projector.0.weight", "queue")
        ),
    ),
    "solo_learn-cifar": Layout(
        "solo_learn",
        lambda s, o: lightning(under("backbone.", s) | head("classifier.weight", "projector.0.weight")),
        stem="cifar_pad2",
    ),
    "swav": Layout("swav", lambda s, o: under("module.", s | head("projection_head.0.weight", "prototypes.weight"))),
    "openmmlab": Layout(
        "openmmlab",
        lambda s, o: {
            "meta": {"config": "text"},
            "state_dict": under("backbone.", s) | under("encoder_k.module.0.", o) | head("neck.0.weight", "queue"),
            "ema_state_dict": under("module.backbone.", o),
        },
    ),
    "contrastive_ring": Layout(
        "contrastive_ring",
        lambda s, o: lightning(
            under("model.features.", numbered(s))
            | under("model_k.features.", numbered(o))
            | head("model.l1.weight", "model.l2.weight", "memory_bank._bank")
        ),
    ),
    "detectron2": Layout("detectron2", lambda s, o: detectron2(s)),
    "detectron2-50": Layout("detectron2", lambda s, o: detectron2(s), "resnet50"),
    "caffe2": Layout("caffe2", lambda s, o: caffe2(s), "resnet50", detected=False),
}


def _cmc(state: State) -> dict:
    named = {n.replace("l_to_ab.", "module.l_to_ab.").replace("ab_to_l.", "module.ab_to_l."): t for n, t in state.items()}
    return {"opt": argparse.Namespace(lr=1), "model": under("encoder.", named | head("module.l_to_ab.fc.weight")), "contrast": {}}


def _renamed(state: State, old: str, new: str) -> State:
    return {n.replace(old, new, 1): t for n, t in state.items() if n.startswith(f"{old}.")}


def _module(state: State) -> nn.Module:
    import torchvision

    network = torchvision.models.resnet18()
    network.load_state_dict(state, strict=False)
    return network
