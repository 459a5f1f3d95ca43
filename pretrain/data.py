"""Training images on their way to the device: small sets live there as uint8, large ones arrive as compressed bytes."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import joblib
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.io import ImageReadMode, decode_jpeg

from imagesets.decode import decode
from imagesets.image_set import ImageSet

RESIDENT = 4 * 10**9  # bytes of pixels that may stay on the device
AHEAD = 3  # batches under way
DECODERS = 3 * joblib.cpu_count() // 2  # threads: reading and decoding release the interpreter lock
Progress = Callable[[int, int], None]


def stored_size(images: ImageSet, resize: int) -> int:
    """The edge S of the squares that images are kept as."""
    if images.images is not None and images.images.shape[1] == images.images.shape[2]:
        return images.images.shape[1]
    return resize


class Images:
    """n square uint8 images (3, S, S) of an image set, batch by batch on `device`.

    `indices` are their positions in the set; S is `resize`, or the set's own size where its images are arrays of one square
    size. Files become S x S by resizing the shorter side (bilinear, antialiased) and cropping the centre.

    `waited` is the time in seconds the consumer of `batches` stood still.
    """

    def __init__(
        self,
        images: ImageSet,
        indices: np.ndarray,
        resize: int,
        device: torch.device,
        limit: int = RESIDENT,
        progress: Progress | None = None,
    ) -> None:
        self.images, self.indices, self.device = images, indices, device
        self.size = stored_size(images, resize)
        self.waited = 0.0
        self.resident = self._load(progress) if 3 * len(indices) * self.size**2 <= limit else None

    def __len__(self) -> int:
        return len(self.indices)

    def positions(self, indices: np.ndarray) -> np.ndarray:
        """Where images of the set lie among these n."""
        return np.searchsorted(self.indices, indices)

    @property
    def how(self) -> str:
        if self.resident is not None:
            return f"{self.resident.nbytes / 1e6:.0f} MB of pixels on {self.device}"
        return f"read from files, decoded on {self.device if self.device.type == 'cuda' else 'the CPU'}"

    def batches(self, order: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Positions (b,) among the n -> (positions, uint8 images (b, 3, S, S)), both on the device."""
        if self.resident is not None:
            for positions in order:
                positions = positions.to(self.device, non_blocking=True)
                yield positions, self.resident[positions]
            return
        with ThreadPoolExecutor(DECODERS) as pool:
            batches = iter(order)
            under_way = deque((batch, self._submit(pool, batch)) for batch in islice(batches, AHEAD))
            while under_way:
                positions, parts = under_way.popleft()
                started = time.perf_counter()
                parts = [part.result() for part in parts]
                self.waited += time.perf_counter() - started
                under_way.extend((batch, self._submit(pool, batch)) for batch in islice(batches, 1))
                yield positions.to(self.device, non_blocking=True), self._finish(parts)

    def _submit(self, pool: ThreadPoolExecutor, positions: Tensor) -> list:
        fetch = self._fetch if self.device.type == "cuda" and self.images.images is None else self._prepared
        return [pool.submit(fetch, i) for i in positions.tolist()]

    def _fetch(self, i: int) -> Tensor:
        """A JPEG as its bytes, for the device to decode; anything else prepared."""
        path = self.images.root / self.images.keys[self.indices[i]]
        if path.suffix.lower() not in (".jpg", ".jpeg"):
            return self._prepared(i)
        data = torch.from_numpy(np.fromfile(path, np.uint8))
        return data if bytes(data[:3]) == b"\xff\xd8\xff" else self._prepared(i)

    def _finish(self, parts: list[Tensor]) -> Tensor:
        encoded = [i for i, part in enumerate(parts) if part.ndim == 1]
        if encoded:
            try:
                decoded = decode_jpeg([parts[i] for i in encoded], ImageReadMode.RGB, device=self.device)
                decoded = [self._fit(image) for image in decoded]
            except RuntimeError:  # one that nvJPEG cannot read
                decoded = [torch.from_numpy(self._square(decode(bytes(parts[i].numpy())))) for i in encoded]
            for i, image in zip(encoded, decoded, strict=True):
                parts[i] = image
        return torch.stack([part.to(self.device, non_blocking=True) for part in parts])

    def _fit(self, image: Tensor) -> Tensor:
        """uint8 (3, H, W) -> (3, S, S) on the image's device."""
        shorter = min(image.shape[1:])
        size = [max(self.size, round(edge * self.size / shorter)) for edge in image.shape[1:]]
        scaled = interpolate(image[None].float(), size, mode="bilinear", antialias=True).round_().clamp_(0, 255)[0]
        top, left = ((edge - self.size) // 2 for edge in size)
        return scaled[:, top : top + self.size, left : left + self.size].to(torch.uint8)

    def _prepared(self, i: int) -> Tensor:
        return torch.from_numpy(self._square(self.images.read(int(self.indices[i]))))

    def _square(self, pixels: np.ndarray) -> np.ndarray:
        """uint8 H x W x 3 -> 3 x S x S."""
        if pixels.shape[:2] != (self.size, self.size):
            height, width = pixels.shape[:2]
            size = [max(self.size, round(edge * self.size / min(height, width))) for edge in (width, height)]
            left, top = ((edge - self.size) // 2 for edge in size)
            image = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
            pixels = np.asarray(image.crop((left, top, left + self.size, top + self.size)))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _load(self, progress: Progress | None) -> Tensor:
        pixels = torch.empty(len(self), 3, self.size, self.size, dtype=torch.uint8)
        with ThreadPoolExecutor(DECODERS) as pool:
            for i, image in enumerate(pool.map(self._prepared, range(len(self)))):
                pixels[i] = image
                if progress:
                    progress(i + 1, len(self))
        return pixels.to(self.device)
