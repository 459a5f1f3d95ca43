"""Small image sets on disk for tests."""

from pathlib import Path

from PIL import Image

from imagesets.image_set import ImageSet
from imagesets.spec import ImagesetSpec


def spec(provider: str, **fields) -> ImagesetSpec:
    return ImagesetSpec(name="some_set", title="Some set", provider=provider, root=fields.pop("root", "."), **fields)


def put(path: Path, colour: int = 0, size: tuple[int, int] = (6, 5)) -> Path:
    """A PNG of one colour, whatever the path's suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, 255 - colour, 7)).save(path, "PNG")
    return path


def tree(root: Path, *keys: str) -> Path:
    for n, key in enumerate(keys):
        put(root / key, n)
    return root


def keys_of(found: ImageSet, split: str) -> list[str]:
    return [found.keys[i] for i in found.splits[split]]
