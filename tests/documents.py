"""Writing checkpoints in torch's two layouts and comparing what is read from them."""

from pathlib import Path
from typing import Any

import torch
from hostile import legacy, saved
from torch import Tensor

from backbones import reading

LAYOUTS = {"zip pickle": saved, "legacy pickle": legacy}


def read(data: bytes, name: str = "model.pth") -> reading.Document:
    path = Path.cwd() / name
    path.write_bytes(data)
    return reading.read(path)


def assert_same(found: Any, expected: Any) -> None:
    """Same structure, order, dtypes, shapes, strides and bits; torch's own small types are strings or tuples in a Document."""
    if isinstance(expected, Tensor):
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
        torch.testing.assert_close(found, expected.detach(), rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict):
        assert type(found) is dict
        assert_same([*found.items()], [*expected.items()])
    elif isinstance(expected, list | tuple):
        assert type(found) is (list if isinstance(expected, list) else tuple)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.dtype | torch.device):
        assert found == str(expected)
    else:
        assert found == expected or (found != found and expected != expected)
        assert type(found) is type(expected) or isinstance(expected, set | bytearray)
