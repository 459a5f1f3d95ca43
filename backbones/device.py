"""Which device and number type a name asks for."""

import torch

from ringbench.errors import Unavailable, UsageError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def resolve_device(name: str = "auto") -> torch.device:
    """`auto` is the first of CUDA, MPS and CPU that is there; any other name must be a device torch can use now."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}; expected auto, cpu, cuda, cuda:N or mps") from None
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise Unavailable(f"device {name!r} cannot be used here ({reason}); use --device cpu") from None
    return device


def resolve_dtype(name: str = "auto") -> torch.dtype:
    """`auto` is float32 everywhere, so that a number does not depend on the machine; half types are asked for by name."""
    if name == "auto":
        return torch.float32
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}; expected auto, {', '.join(DTYPES)}")
    return DTYPES[name]
