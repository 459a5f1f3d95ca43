import contextlib
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from backbones.trunk import FrozenBackbone, random_trunk, trunk_sha256
from imagesets import image_set as imagesets
from imagesets.decode import BadImage
from imagesets.pipeline import parse
from imagesets.spec import ImagesetSpec
from ringbench.errors import RingbenchError, UsageError
from transfer import features as features_module
from transfer import store
from transfer.features import extract

PIPELINE = parse("rgb|resize(32,bilinear)|center_crop(32)|scale01")


@pytest.fixture(scope="module")
def backbone():
    trunk = random_trunk("resnet18", "imagenet", 0)
    return FrozenBackbone(trunk, {"trunk_sha256": trunk_sha256(trunk)})


@pytest.fixture
def images(tmp_path):
    """40 small images of two classes, of many sizes."""
    rng = np.random.default_rng(0)
    for i in range(40):
        folder = tmp_path / "set" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        size = rng.integers(20, 60, 2)
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return load(tmp_path)


def load(tmp_path):
    return imagesets.load(ImagesetSpec(name="set", title="t", provider="folder"), tmp_path)


def by_hand(backbone, images, indices, level):
    """One image at a time, no cache: what the features should be."""
    rows = [backbone(torch.from_numpy(PIPELINE.prepare(images.read(i))).permute(2, 0, 1)[None], [level])[level] for i in indices]
    return torch.cat(rows).numpy()


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_features_are_those_of_one_image_at_a_time_in_the_order_of_the_indices(backbone, images, tmp_path, batch_size):
    indices = images.trainval
    found = extract(backbone, PIPELINE, images, indices, ["pooled", "prepool"], tmp_path / "cache", batch_size=batch_size)
    for level, shape in {"pooled": (512,), "prepool": (512, 1, 1)}.items():
        assert found[level].array.shape == (len(indices), *shape)
        np.testing.assert_allclose(found[level].array, by_hand(backbone, images, indices, level), rtol=1e-4, atol=1e-4)
    assert np.array_equal(found["pooled"].indices, indices)


class Counting(torch.nn.Module):
    """Counts the images that pass through the trunk."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.count = inner, 0
        self.certificate, self.dtype, self.device = inner.certificate, inner.dtype, inner.device

    def forward(self, images, levels):
        self.count += len(images)
        return self.inner(images, levels)


def test_each_image_passes_the_trunk_once_whatever_is_asked_later(backbone, images, tmp_path):
    counting, cache = Counting(backbone), tmp_path / "cache"
    first = extract(counting, PIPELINE, images, images.trainval, ["prepool"], cache)
    assert counting.count == len(images.trainval)
    assert not first["prepool"].cached
    again = extract(counting, PIPELINE, images, images.trainval, ["prepool", "pooled"], cache)
    assert again["prepool"].cached
    assert counting.count == len(images.trainval)
    np.testing.assert_allclose(again["pooled"].array, by_hand(backbone, images, images.trainval, "pooled"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "change", ["weights", "pipeline", "images", "images of the same size", "times set back", "split", "dtype"]
)
def test_whatever_features_depend_on_is_part_of_their_key(backbone, images, tmp_path, change):
    key = features_module.cache_key
    sha = backbone.certificate["trunk_sha256"]
    before = key(sha, PIPELINE, images, images.trainval, torch.float32)
    assert key(sha, PIPELINE, images, images.trainval, torch.float32) == before
    if change == "images":
        (tmp_path / "set" / "a" / "0.png").write_bytes((tmp_path / "set" / "a" / "2.png").read_bytes())
    if change == "images of the same size":
        path = tmp_path / "set" / "a" / "0.png"
        path.write_bytes(path.read_bytes()[::-1])
    if change == "times set back":  # as rsync -t, cp -p and tar do
        path = tmp_path / "set" / "a" / "0.png"
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        path.write_bytes(path.read_bytes()[::-1])
        os.utime(path, ns=times)
    after = key(
        "other" if change == "weights" else sha,
        parse("rgb|resize(32,bicubic)|center_crop(32)|scale01") if change == "pipeline" else PIPELINE,
        load(tmp_path) if change.startswith(("images", "times")) else images,
        images.splits["test"] if change == "split" else images.trainval,
        torch.float16 if change == "dtype" else torch.float32,
    )
    assert after != before


class Interrupted(Exception):
    pass


class Stopping(Counting):
    def forward(self, images, levels):
        if self.count + len(images) > 16:
            raise Interrupted
        return super().forward(images, levels)


def test_an_interrupted_pass_goes_on_where_it_was(backbone, images, tmp_path):
    cache, indices = tmp_path / "cache", images.trainval
    with pytest.raises(Interrupted):
        extract(Stopping(backbone), PIPELINE, images, indices, ["pooled"], cache, batch_size=8)
    counting = Counting(backbone)
    found = extract(counting, PIPELINE, images, indices, ["pooled"], cache, batch_size=8)["pooled"]
    assert counting.count == len(indices) - 16
    np.testing.assert_allclose(found.array, by_hand(backbone, images, indices, "pooled"), rtol=1e-4, atol=1e-4)
    assert not list(cache.rglob("*.part"))
    assert not list(cache.rglob("progress.json"))


def test_a_write_that_stops_between_two_levels_costs_no_row_that_counts(tmp_path):
    class Stops:
        @property
        def data(self):
            raise Interrupted

    rows = np.ones((4, 2), np.float32)
    writer = store.Writer(tmp_path, ["res4", "res5"], 12, {})
    writer.append({"res4": rows, "res5": rows}, 4, [])
    with contextlib.closing(writer), pytest.raises(Interrupted):
        writer.append({"res4": rows, "res5": Stops()}, 4, [])
    with contextlib.closing(store.Writer(tmp_path, ["res4", "res5"], 12, {})) as again:
        assert (again.rows, again.seen) == (4, 4)


def damage(path):
    """Another byte in the middle; size and times as before."""
    times, content = (path.stat().st_atime_ns, path.stat().st_mtime_ns), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=times)


@pytest.mark.parametrize("asked", [["prepool"], ["pooled"], ["prepool", "pooled"]])
@pytest.mark.parametrize("damaged", ["prepool.bin", "pooled.bin"])
def test_features_that_were_damaged_on_disk_are_made_anew(backbone, images, tmp_path, damaged, asked):
    cache, indices = tmp_path / "cache", images.trainval
    first = extract(backbone, PIPELINE, images, indices, ["prepool", "pooled"], cache)
    expected = {level: np.array(features.array) for level, features in first.items()}
    damage(next(cache.rglob(damaged)))
    found = extract(backbone, PIPELINE, images, indices, asked, cache)
    assert all(found[level].array.tobytes() == expected[level].tobytes() for level in asked)
    for level in asked:
        assert found[level].cached == (not damaged.startswith(level))


def test_pooled_features_are_never_made_from_damaged_prepool_features(backbone, images, tmp_path):
    cache, counting = tmp_path / "cache", Counting(backbone)
    extract(counting, PIPELINE, images, images.trainval, ["prepool"], cache)
    damage(next(cache.rglob("prepool.bin")))
    found = extract(counting, PIPELINE, images, images.trainval, ["pooled"], cache)["pooled"].array
    assert counting.count == 2 * len(images.trainval)
    np.testing.assert_allclose(found, by_hand(backbone, images, images.trainval, "pooled"), rtol=1e-4, atol=1e-4)


def test_rows_damaged_before_an_interrupted_pass_goes_on_never_count(backbone, images, tmp_path):
    cache, indices = tmp_path / "cache", images.trainval
    with pytest.raises(Interrupted):
        extract(Stopping(backbone), PIPELINE, images, indices, ["pooled"], cache, batch_size=8)
    damage(next(cache.rglob("pooled.bin.part")))
    found = extract(backbone, PIPELINE, images, indices, ["pooled"], cache, batch_size=8)["pooled"]
    np.testing.assert_allclose(found.array, by_hand(backbone, images, indices, "pooled"), rtol=1e-4, atol=1e-4)


def test_fresh_features_are_made_whatever_is_in_the_cache(backbone, images, tmp_path):
    counting, cache = Counting(backbone), tmp_path / "cache"
    extract(counting, PIPELINE, images, images.trainval, ["prepool"], cache)
    found = extract(counting, PIPELINE, images, images.trainval, ["pooled"], cache, fresh=True)["pooled"]
    assert counting.count == 2 * len(images.trainval) and not found.cached
    np.testing.assert_allclose(found.array, by_hand(backbone, images, images.trainval, "pooled"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("leftover", ["shorter rows", "longer rows", "broken state", "other levels"])
def test_leftovers_of_a_killed_pass_never_reach_the_features(backbone, images, tmp_path, leftover):
    cache, indices = tmp_path / "cache", images.trainval
    with pytest.raises(Interrupted):
        extract(Stopping(backbone), PIPELINE, images, indices, ["pooled"], cache, batch_size=8)
    (part,), (state,) = cache.rglob("pooled.bin.part"), cache.rglob("progress.json")
    if leftover == "shorter rows":
        part.write_bytes(part.read_bytes()[:-1])
    elif leftover == "longer rows":
        part.write_bytes(part.read_bytes() + b"torn row")
    elif leftover == "broken state":
        state.write_text('{"levels": ')
    levels = ["pooled", "res4"] if leftover == "other levels" else ["pooled"]
    found = extract(backbone, PIPELINE, images, indices, levels, cache, batch_size=8)["pooled"]
    np.testing.assert_allclose(found.array, by_hand(backbone, images, indices, "pooled"), rtol=1e-4, atol=1e-4)


def test_a_bad_image_stops_the_pass_and_is_named(backbone, images, tmp_path):
    bad = tmp_path / "set" / "a" / "0.png"
    bad.write_bytes(bad.read_bytes()[:60])
    with pytest.raises(BadImage, match=r"a/0\.png"):
        extract(backbone, PIPELINE, load(tmp_path), np.arange(40), ["pooled"], tmp_path / "cache")


def test_a_bad_image_can_be_skipped_and_is_counted(backbone, images, tmp_path):
    for name in ("a/0.png", "b/13.png"):
        (tmp_path / "set" / name).write_bytes(b"no image")
    damaged = load(tmp_path)
    found = extract(backbone, PIPELINE, damaged, np.arange(40), ["pooled"], tmp_path / "c", batch_size=8, on_bad_image="skip")
    assert found["pooled"].skipped == ["a/0.png", "b/13.png"]
    assert len(found["pooled"].array) == len(found["pooled"].indices) == 38
    assert {damaged.keys[i] for i in found["pooled"].indices}.isdisjoint(found["pooled"].skipped)
    np.testing.assert_allclose(
        found["pooled"].array, by_hand(backbone, damaged, found["pooled"].indices, "pooled"), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(BadImage, match=r"a/0\.png"):  # features that skipped do not serve a run that must not skip
        extract(backbone, PIPELINE, damaged, np.arange(40), ["pooled"], tmp_path / "c")


def test_a_set_without_one_readable_image_is_refused(backbone, images, tmp_path):
    for path in (tmp_path / "set").rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(RingbenchError, match="none of the 40 images"):
        extract(backbone, PIPELINE, load(tmp_path), np.arange(40), ["pooled"], tmp_path / "c", on_bad_image="skip")


def test_images_of_different_sizes_after_the_pipeline_are_refused(backbone, images, tmp_path):
    with pytest.raises(UsageError, match="different sizes"):
        extract(backbone, parse("rgb|scale01"), images, np.arange(40), ["pooled"], tmp_path / "c")


def test_a_disk_too_small_is_told_before_the_pass(backbone, images, tmp_path, monkeypatch):
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(RingbenchError, match=r"pooled features of 40 images take 81\.9 kB and .* has 1\.0 kB left.*BENCH_HOME"):
        extract(backbone, PIPELINE, images, np.arange(40), ["pooled"], tmp_path / "c")


def test_the_room_for_all_levels_together_is_what_counts(backbone, images, tmp_path, monkeypatch):
    each = 40 * 512 * 4
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: type("Usage", (), {"free": each + each // 2})())
    with pytest.raises(RingbenchError, match="the prepool and pooled features"):
        extract(backbone, PIPELINE, images, np.arange(40), ["prepool", "pooled"], tmp_path / "c")
    extract(backbone, PIPELINE, images, np.arange(40), ["pooled"], tmp_path / "c")


@pytest.mark.parametrize(("dtype", "stored"), [(torch.float16, np.float16), (torch.bfloat16, np.float32)])
def test_half_features_are_stored_without_loss(backbone, images, tmp_path, dtype, stored):
    half = FrozenBackbone(backbone.trunk, backbone.certificate, dtype=dtype)
    found = extract(half, PIPELINE, images, np.arange(8), ["pooled"], tmp_path / "c")["pooled"].array
    assert found.dtype == stored
    batch = torch.from_numpy(np.stack([PIPELINE.prepare(images.read(i)) for i in range(8)])).permute(0, 3, 1, 2)
    np.testing.assert_array_equal(found, half(batch)["pooled"].float().numpy())


def test_two_passes_over_the_same_images_at_once_compute_them_once(backbone, images, tmp_path):
    counting = Counting(backbone)
    run = lambda: extract(counting, PIPELINE, images, np.arange(40), ["pooled"], tmp_path / "c")  # noqa: E731
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counting.count == 40


MEASURE = """
import resource, sys, threading, time
import numpy as np, torch
from backbones.trunk import FrozenBackbone, random_trunk
from imagesets.pipeline import parse
from transfer.features import extract
from pathlib import Path

class Images:  # random pixels made when they are read: the set itself takes no memory
    spec = type("Spec", (), {"name": "random"}); local_state = "f"; keys = range(100_000)
    def read(self, i): return np.full((64, 64, 3), i % 256, np.uint8)

class Wide(torch.nn.Module):  # a trunk of no cost with features as wide as ResNet-18's prepool at 224 px
    certificate, dtype, device = {"trunk_sha256": "t"}, torch.float32, torch.device("cpu")
    def forward(self, images, levels): return {"prepool": torch.zeros(len(images), 512, 7, 7)}

def anonymous_mb():
    fields = dict(line.split(":") for line in open("/proc/self/status"))
    return int(fields["RssAnon"].split()[0]) / 1024

peak, stop = 0.0, threading.Event()
def watch():
    global peak
    while not stop.is_set():
        peak = max(peak, anonymous_mb()); time.sleep(0.005)
extract(Wide(), parse("rgb|scale01"), Images(), np.arange(128), ["prepool"], Path(sys.argv[1]) / "warm")
start = anonymous_mb()
watcher = threading.Thread(target=watch); watcher.start()
extract(Wide(), parse("rgb|scale01"), Images(), np.arange(int(sys.argv[2])), ["prepool"], Path(sys.argv[1]) / sys.argv[2])
stop.set(); watcher.join()
print(peak - start)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads resident memory from /proc")  # noqa: PTH110
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    def growth(n):
        command = [sys.executable, "-c", MEASURE, str(tmp_path), str(n)]
        run = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}
        )
        return float(run.stdout)

    few, many = growth(500), growth(5000)  # 50 MB and 500 MB of features
    assert many < few + 60


def test_a_pass_killed_at_any_moment_is_finished_by_the_next(images, tmp_path, backbone):
    script = f"""
import sys, os, signal, numpy as np
from pathlib import Path
from imagesets import image_set as imagesets
from imagesets.spec import ImagesetSpec
from backbones.trunk import FrozenBackbone, random_trunk, trunk_sha256
from imagesets.pipeline import parse
from transfer import features, store
trunk = random_trunk("resnet18", "imagenet", 0)
backbone = FrozenBackbone(trunk, {{"trunk_sha256": trunk_sha256(trunk)}})
images = imagesets.load(ImagesetSpec(name="set", title="t", provider="folder"), Path({str(tmp_path)!r}))
commit = store.Writer._commit
def killed(self):
    commit(self)
    if self.seen >= int(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)
store.Writer._commit = killed
append = store.Writer.append
def every(self, *a): append(self, *a); self._commit()
store.Writer.append = every
features.extract(backbone, parse("rgb|resize(32,bilinear)|center_crop(32)|scale01"), images, np.arange(40), ["pooled"],
                 Path({str(tmp_path / "cache")!r}), batch_size=4)
"""
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    for seen in (8, 24):
        run = subprocess.run([sys.executable, "-c", script, str(seen)], env=environment, capture_output=True, text=True)
        assert run.returncode == -signal.SIGKILL, run.stderr
    counting = Counting(backbone)
    found = extract(counting, PIPELINE, images, np.arange(40), ["pooled"], tmp_path / "cache", batch_size=4)["pooled"].array
    assert counting.count == 40 - 24
    np.testing.assert_allclose(found, by_hand(backbone, images, range(40), "pooled"), rtol=1e-4, atol=1e-4)
