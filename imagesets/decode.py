"""One way from an image file, its bytes or an array to uint8 RGB, H x W x 3."""

import io
import os
import stat
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ringbench.errors import RingbenchError, Unavailable


class BadImage(RingbenchError):
    """What is there is not a whole image that can be read."""


def decode(source: Path | str | bytes | np.ndarray) -> np.ndarray:
    """uint8 RGB, H x W x 3, contiguous; it may be read-only.

    Turned upright by its EXIF orientation; gray and palette images become RGB; 16-bit gray is scaled by 1/257, not clipped;
    transparency is composited on white; CMYK is converted without its colour profile; of an animation the first frame counts.
    An array must be uint8 and H x W, H x W x 1 or H x W x 3: an order of axes is never guessed.

    Raises BadImage with the path and the reason: empty, truncated, corrupt, no image, or so many pixels that PIL takes it for a
    decompression bomb; Unavailable where the file cannot be read at all.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source)
    data = source if isinstance(source, bytes) else _read(source)
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return np.asarray(_rgb(image))
    except UnidentifiedImageError:
        reason = "it is in no known image format" if data else "it is empty"
    except Exception as error:  # on arbitrary bytes the decoders raise almost anything
        reason = str(error) or type(error).__name__
    name = "an image given as bytes" if isinstance(source, bytes) else source
    raise BadImage(f"{name} cannot be decoded: {reason}")


def _read(path: Path | str) -> bytes:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - takes both
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # which would wait for a writer, or never end
            raise BadImage(f"{path} is a pipe, socket or device, not an image")
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):  # 0..65535
        image = Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of {'32-bit integers' if image.mode == 'I' else 'floats'} have no known range")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _from_array(array: np.ndarray) -> np.ndarray:
    gray = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    if array.dtype != np.uint8 or array.size == 0 or not (gray or (array.ndim == 3 and array.shape[2] == 3)):
        shape = "x".join(map(str, array.shape))
        raise BadImage(f"an array of {array.dtype} {shape} is not an image; expected uint8 HxW, HxWx1 or HxWx3")
    if gray:
        return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2)
    return np.ascontiguousarray(array)
