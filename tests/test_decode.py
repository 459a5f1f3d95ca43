"""Every kind of image file becomes the RGB a person sees, or a BadImage that names it."""

import io
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from imagesets.decode import BadImage, decode
from ringbench.errors import RingbenchError, Unavailable


def gradient(height: int = 24, width: int = 40) -> np.ndarray:
    """A smooth colour image without any symmetry, so that a lossy format keeps it and a wrong turn shows."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * x // width, 255 * y // height, 255 * (x + y) // (height + width)], 2).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF"])
def test_lossless_rgb_files_come_back_bit_for_bit_from_a_path_and_from_bytes(kind, tmp_path):
    data = encoded(Image.fromarray(gradient()), kind)
    path = tmp_path / "image"
    path.write_bytes(data)
    for source in (data, path, str(path)):
        decoded = decode(source)
        assert decoded.dtype == np.uint8 and decoded.flags.c_contiguous
        np.testing.assert_array_equal(decoded, gradient())


def test_jpeg_decodes_as_pil_does_without_draft_mode():
    data = encoded(Image.fromarray(gradient(300, 400)), "JPEG", quality=80)
    np.testing.assert_array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


# What the viewer sees after turning the stored pixels as the EXIF standard says (TIFF 6.0, tag 274).
TURNS = {
    1: lambda seen: seen,
    2: lambda seen: seen[:, ::-1],
    3: lambda seen: seen[::-1, ::-1],
    4: lambda seen: seen[::-1],
    5: lambda seen: seen.transpose(1, 0, 2),
    6: lambda seen: np.rot90(seen, 1),
    7: lambda seen: np.rot90(seen, 2).transpose(1, 0, 2),
    8: lambda seen: np.rot90(seen, -1),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_an_exif_rotated_image_is_turned_upright(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(TURNS[orientation](gradient())))
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    decoded = decode(encoded(stored, kind, exif=exif, **options))
    assert decoded.shape == (24, 40, 3)
    assert np.abs(decoded.astype(int) - gradient()).max() <= (12 if kind == "JPEG" else 0)


def test_an_orientation_that_does_not_exist_and_broken_exif_leave_the_image_as_it_is():
    exif = Image.Exif()
    exif[0x0112] = 9
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(gradient()), "PNG", exif=exif)), gradient())
    plain = encoded(Image.fromarray(gradient()), "JPEG")
    broken = encoded(Image.fromarray(gradient()), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(decode(broken), decode(plain))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_gray_and_one_bit_images_become_three_equal_channels(kind):
    gray = gradient()[..., 0]
    decoded = decode(encoded(Image.fromarray(gray), kind))
    np.testing.assert_array_equal(decoded, np.stack([gray] * 3, 2))
    decoded = decode(encoded(Image.fromarray(gray > 100), kind))
    np.testing.assert_array_equal(decoded, np.stack([np.where(gray > 100, 255, 0)] * 3, 2))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PGM"])
def test_sixteen_bit_gray_is_scaled_to_the_nearest_level_and_not_clipped(kind):
    levels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    pgm = b"P5 256 256 65535\n" + levels.astype(">u2").tobytes()
    decoded = decode(pgm if kind == "PGM" else encoded(Image.fromarray(levels), kind))
    expected = np.round(levels / 257.0).astype(np.uint8)
    np.testing.assert_array_equal(decoded, np.stack([expected] * 3, 2))


def test_a_rotated_sixteen_bit_image_is_scaled_and_turned():
    levels = (np.arange(24 * 40, dtype=np.uint16) * 60).reshape(24, 40)
    exif = Image.Exif()
    exif[0x0112] = 6
    decoded = decode(encoded(Image.fromarray(np.ascontiguousarray(np.rot90(levels))), "PNG", exif=exif))
    np.testing.assert_array_equal(decoded[..., 0], np.round(levels / 257.0))


@pytest.mark.parametrize("array", [np.ones((4, 4), np.float32), np.ones((4, 4), np.int32)], ids=["floats", "32-bit integers"])
def test_pixels_without_a_known_range_are_refused(array):
    with pytest.raises(BadImage, match="no known range"):
        decode(encoded(Image.fromarray(array), "TIFF"))


def on_white(rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[..., None] / 255.0
    return rgb * share + 255 * (1 - share)


def test_alpha_is_composited_on_white():
    rgb, alpha = gradient(), gradient()[..., 1].T.copy().repeat(2, 1)[:24, :40]
    image = Image.fromarray(np.dstack([rgb, alpha]))
    assert np.abs(decode(encoded(image, "PNG")) - on_white(rgb, alpha)).max() <= 1
    gray = image.convert("LA")
    expected = on_white(np.stack([np.asarray(gray)[..., 0]] * 3, 2), alpha)
    assert np.abs(decode(encoded(gray, "PNG")) - expected).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_palette_images_are_looked_up_and_their_transparent_colour_is_white(kind):
    palette = Image.new("P", (3, 1))
    palette.putpalette([10, 20, 30, 200, 100, 0, 0, 0, 255])
    palette.putdata([0, 1, 2])
    assert decode(encoded(palette, kind)).tolist() == [[[10, 20, 30], [200, 100, 0], [0, 0, 255]]]
    assert decode(encoded(palette, kind, transparency=1)).tolist() == [[[10, 20, 30], [255, 255, 255], [0, 0, 255]]]


def test_the_transparent_colour_of_an_rgb_or_gray_png_is_white():
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    image.putpixel((1, 0), (4, 5, 6))
    assert decode(encoded(image, "PNG", transparency=(4, 5, 6))).tolist() == [[[1, 2, 3], [255, 255, 255]]]
    assert decode(encoded(Image.new("L", (1, 1), 7), "PNG", transparency=7)).tolist() == [[[255, 255, 255]]]


def test_cmyk_becomes_rgb():
    flat = Image.new("CMYK", (16, 16), (255, 0, 128, 64))
    c, m, y, k = (np.float64(x) / 255 for x in (255, 0, 128, 64))
    expected = [255 * (1 - ink) * (1 - k) for ink in (c, m, y)]
    for kind in ("TIFF", "JPEG"):
        assert np.abs(decode(encoded(flat, kind)) - np.array(expected)).max() <= 3


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_counts(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert np.abs(decode(data).astype(int) - (255, 0, 0)).max() <= 4


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3), (1, 1), (3, 3, 3)])
def test_arrays_in_the_order_height_width_channels_are_taken(shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    decoded = decode(array)
    assert decoded.shape == (*shape[:2], 3) and decoded.flags.c_contiguous
    np.testing.assert_array_equal(decoded, np.broadcast_to(array.reshape(*shape[:2], -1), decoded.shape))


@pytest.mark.parametrize(
    "array",
    [np.zeros((3, 8, 8), np.uint8), np.zeros((8, 8, 4), np.uint8), np.zeros((8, 8), np.float32), np.zeros((8, 8, 3), np.uint16),
     np.zeros(8, np.uint8), np.zeros((0, 8, 3), np.uint8), np.zeros((1, 8, 8, 3), np.uint8)],
    ids=lambda array: f"{array.dtype}-{'x'.join(map(str, array.shape))}",
)  # fmt: skip
def test_any_other_array_is_refused_and_its_axes_are_not_guessed(array):
    with pytest.raises(BadImage, match="expected uint8 HxW, HxWx1 or HxWx3"):
        decode(array)


BROKEN = {
    "empty.jpg": (b"", "it is empty"),
    "text.png": (b"<html>404</html>", "no known image format"),
    "zeros.jpg": (b"\0" * 500, "no known image format"),
    "header_only.png": (b"\x89PNG\r\n\x1a\n", "cannot be decoded"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_image_is_named_with_the_reason(name, tmp_path):
    data, reason = BROKEN[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadImage) as caught:
        decode(tmp_path / name)
    assert isinstance(caught.value, RingbenchError)
    assert str(tmp_path / name) in str(caught.value) and reason in str(caught.value)
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"restart_marker_rows": 1}], ids=["baseline", "progressive", "restart"]
)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_jpeg_is_named_with_its_path_wherever_it_breaks_off(options, share, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = encoded(Image.fromarray(noise), "JPEG", **options)
    path = tmp_path / "half.jpg"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BadImage, match=r"half\.jpg cannot be decoded"):
        decode(path)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_truncated_files_of_other_formats_are_refused(kind, share):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    with pytest.raises(BadImage):
        decode(data[: int(len(data) * share)])


def test_a_png_whose_pixels_fail_their_checksum_is_refused():
    data = bytearray(encoded(Image.fromarray(gradient(64, 64)), "PNG"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(BadImage):
        decode(bytes(data))


GARBLED = {kind: encoded(Image.fromarray(gradient()), kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(GARBLED)),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    st.integers(0, 99),
)
def test_any_damage_gives_an_image_or_a_bad_image_and_nothing_else(kind, changes, cut):
    data = bytearray(GARBLED[kind])
    for place, value in changes:
        data[place % len(data)] = value
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            decoded = decode(bytes(data[: len(data) * (100 - cut) // 100]))
        assert decoded.dtype == np.uint8 and decoded.ndim == 3 and decoded.shape[2] == 3
    except BadImage:
        pass


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    data = encoded(Image.new("L", (50, 50)), "PNG")
    with pytest.raises(BadImage, match=r"2500 pixels"):
        decode(data)


def test_a_file_that_cannot_be_read_is_unavailable_not_a_bad_image(tmp_path):
    for path in (tmp_path / "absent.jpg", tmp_path):
        with pytest.raises(Unavailable, match="cannot be read") as caught:
            decode(path)
        assert str(path) in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_a_bad_image_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to("pipe.png")
    for name in ("pipe.png", "link.png"):
        with pytest.raises(BadImage, match=f"{name} is a pipe"):
            decode(tmp_path / name)
    with pytest.raises(BadImage, match="device"):
        decode("/dev/zero")


def test_real_photographs_decode_as_pil_and_torchvision_read_them(real_data):
    from torchvision.datasets.folder import pil_loader

    paths = sorted((real_data("dtd10") / "dtd" / "images").rglob("*.jpg"))[::60]
    assert len(paths) == 20
    for path in paths:
        np.testing.assert_array_equal(decode(path), np.asarray(pil_loader(Path(path))))
