"""Checkpoints that look like a ResNet and are another network, recognised so that the refusal says why."""

import re

STRANGERS = (
    (
        (r"layer1\.0\.shortcut\.0\.weight$", r"(^|\.)bn\.running_mean$"),
        "holds a pre-activation ResNet (as LocalAggregation's preact-resnet18), which is another network than torchvision's",
    ),
    ((r"(^|\.)conv1\.[36]\.weight$",), "holds a ResNet-C or -D with a deep stem (timm's resnet*d), not torchvision's ResNet"),
    ((r"(^|\.)(patch_embed|cls_token)(\.|$)",), "holds a vision transformer; a ResNet is needed"),
    ((r"flat_param",), "is one piece of a checkpoint that was saved sharded; save the whole state dict"),
    ((r"layer1\.0\.(se|conv1|conv2)\.(fc|attn|sk)",), "holds a ResNet with attention (SE or SK), not torchvision's"),
    (
        (r"(^|\.)res2_0_branch2a_w$",),
        "has Caffe2's names, under which the stride may be on the 1x1 convolutions, another network; "
        "if it is on the 3x3 as in torchvision, say --format caffe2",
    ),
)


def reason(names: list[str]) -> str | None:
    """What these tensors belong to, as the end of a sentence that begins with the file's name; None if that is not known."""
    for patterns, sentence in STRANGERS:
        if all(any(re.search(pattern, name) for name in names) for pattern in patterns):
            return sentence
    return None
