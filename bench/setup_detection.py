"""`bench setup detection`: Detectron2, which is not on PyPI, becomes importable.

Unless it is already there, one wheel that carries its Python files is fetched from PyPI, checked against its hash and
repacked under its right name, without the parts that serve one Python version only; or the official source is built.
"""

import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ringbench.errors import RingbenchError, Unavailable
from ringbench.network import offline

COMMAND = "bench setup detection"
SOURCE = "git+https://github.com/facebookresearch/detectron2"
WHEEL = "sal-detectron2==0.7.2 --hash=sha256:491af0c7f79bdb2d178e46f6cb16a97c4ac968d45c41ea3f6b6435d59bbee561"
VERSION = "0.6+pure.sal.0.7.2"  # Detectron2's release; where the files come from, and that nothing compiled is left
REQUIRES = (  # what Detectron2 imports; the extra `detection` lists the same
    "cloudpickle",
    "fvcore>=0.1.5,<0.1.6",
    "hydra-core>=1.1",
    "iopath>=0.1.7,<0.1.10",
    "matplotlib",
    "omegaconf>=2.1,<2.4",
    "packaging",
    "pycocotools>=2.0.8",
    "tabulate",
    "tensorboard",
    "termcolor",
    "tqdm",
    "yacs",
)
METADATA = f"""Metadata-Version: 2.4
Name: detectron2
Version: {VERSION}
Summary: Detectron2's Python files, repacked from the wheel sal-detectron2 0.7.2 without its compiled extension
Home-page: https://github.com/facebookresearch/detectron2
Author: FAIR
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.8
{"".join(f"Requires-Dist: {requirement}" + chr(10) for requirement in REQUIRES)}
The files are those of the wheel, unchanged. Left out: detectron2/_C, compiled for CPython 3.10 and needed only for rotated
boxes, deformable convolutions and the fast COCO evaluation; and a package `tools` beside it.
"""


def missing() -> str | None:
    """One sentence why detection tasks cannot run here, or None. Imports nothing."""
    return None if find_spec("detectron2") else f"Detectron2 is not installed; run: {COMMAND}"


def command(*, from_source: bool = False) -> None:
    """Install Detectron2, or tell which one is there; its source takes the place of the repacked wheel.

    Raises Unavailable without a network or if pip fails, RingbenchError for one that is there and cannot be imported.
    """
    if missing() is None and not (from_source and _version() == VERSION):
        print(f"detectron2 is already here: {_checked()}; nothing to do")
        return
    if variable := offline():
        raise Unavailable(f"Detectron2 must be downloaded and {variable} forbids the network; unset it and run: {COMMAND}")
    print(f"installing Detectron2 from {SOURCE if from_source else WHEEL.split()[0]} ...", flush=True)
    if from_source:
        _pip("install", "setuptools", "wheel")
        _pip("install", "--no-build-isolation", SOURCE)  # its setup imports the torch that is installed
    else:
        with tempfile.TemporaryDirectory() as folder:
            _pip("install", str(repack(_download(Path(folder)), Path(folder))))
    print(f"installed detectron2: {_checked()}")


def repack(wheel: Path, folder: Path) -> Path:
    """Write the Python files of `wheel`, and what lies between them, to a pure wheel named detectron2; returns its path."""
    info, out = f"detectron2-{VERSION}.dist-info", folder / f"detectron2-{VERSION}-py3-none-any.whl"
    records = []
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:

        def add(name: str, content: bytes) -> None:
            new.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(content)}\n")

        for name in old.namelist():
            if name.startswith("detectron2/") and not name.endswith((".so", "/")):
                add(name, old.read(name))
            elif name.endswith(".dist-info/LICENSE"):
                add(f"{info}/licenses/LICENSE", old.read(name))
        add(f"{info}/METADATA", METADATA.encode())
        add(f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: ringbench\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        new.writestr(f"{info}/RECORD", ("".join(records) + f"{info}/RECORD,,\n").encode())
    return out


def _download(folder: Path) -> Path:
    """The wheel, whatever this Python's version and platform; pip refuses one with another hash."""
    (folder / "requirements.txt").write_text(WHEEL + "\n")
    python = ["--implementation", "cp", "--python-version", "3.10", "--abi", "none", "--platform", "any"]
    _pip(
        "download",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        *python,
        "-d",
        str(folder),
        "-r",
        str(folder / "requirements.txt"),
    )
    return next(folder.glob("*.whl"))


def _checked() -> str:
    """Version and place, told by a fresh process that imports what detection needs."""
    program = "import detectron2.modeling, detectron2 as d; print(d.__version__, 'in', d.__path__[0])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RingbenchError(
            f"Detectron2 is installed but cannot be imported ({last}); remove it (pip uninstall detectron2) and run: {COMMAND}"
        )
    return done.stdout.strip()


def _version() -> str | None:
    try:
        return version("detectron2")
    except PackageNotFoundError:  # a checkout on the path
        return None


def _pip(*arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check"]
    done = subprocess.run([sys.executable, "-m", "pip", *arguments, *quiet], capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")] or ["no message"]
        raise Unavailable(f"pip {arguments[0]} failed: {errors[-1].removeprefix('ERROR: ')}")
