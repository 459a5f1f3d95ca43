import os

import pytest
import torch
import torchvision

from backbones import loading, sources
from backbones.spec import BackboneSpec
from ringbench import files
from ringbench.errors import RingbenchError, Unavailable, UsageError

IMAGES = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
PIPELINE = "rgb|resize(256,bilinear)|center_crop(224)|scale01|normalize(imagenet)"


def spec(source, **changes) -> BackboneSpec:
    return BackboneSpec(
        **{"name": "enc", "title": "t", "arch": "resnet18", "source": str(source), "pipeline": PIPELINE} | changes
    )


@pytest.fixture
def network():
    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).eval()


@pytest.fixture
def checkpoint(tmp_path, network):
    path = tmp_path / "resnet18.pth"
    torch.save(network.state_dict(), path)
    return path


def test_features_of_a_loaded_file_are_those_of_the_network_it_came_from(checkpoint, network):
    backbone = loading.load(spec(checkpoint))
    network.fc = torch.nn.Identity()
    with torch.no_grad():
        expected = network(IMAGES.float() / 255)
    torch.testing.assert_close(backbone(IMAGES)["pooled"], expected, rtol=1e-5, atol=1e-5)


def test_the_certificate_says_what_was_matched_and_what_was_dropped(checkpoint):
    certificate = loading.load(spec(checkpoint)).certificate
    assert certificate["matched"] == 120
    assert certificate["missing"] == 0
    assert certificate["dropped"] == {"fc": 2}
    assert certificate["file_sha256"] == files.sha256_file(checkpoint)
    assert len(certificate["trunk_sha256"]) == 64


def test_a_random_backbone_follows_the_runs_seed_unless_its_entry_fixes_one():
    def sha(run_seed, **fixed):
        return loading.load(spec("random", **fixed), seed=run_seed).certificate["trunk_sha256"]

    assert sha(0) == sha(0) != sha(1)
    assert sha(0, seed=5) == sha(1, seed=5) == sha(5)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda s: s.pop("layer4.1.conv2.weight"), r"fills 99 of 100 .*missing layer4\.1\.conv2\.weight"),
        (lambda s: s.clear(), "no tensors"),
        (lambda s: s.update({f"x{k}": s.pop(k) for k in list(s)}), r"no ResNet trunk; its 122 tensors are called xconv1\.weight"),
        (
            lambda s: s.update({"layer1.2.conv1.weight": torch.zeros(1)}),
            "has 1 trunk tensors that a resnet18 with imagenet stem has not",
        ),
        (lambda s: s.update({"conv1.weight": torch.zeros(64, 3, 3, 3)}), r"\(64, 3, 3, 3\), a resnet18 with imagenet stem"),
        (lambda s: s["layer2.0.bn1.running_var"].neg_(), "negative variance"),
        (lambda s: [tensor.zero_() for tensor in s.values()], "the same features for all images"),
        (lambda s: s["conv1.weight"].zero_(), "the same features for all images"),
        (lambda s: s["layer4.1.bn2.bias"].fill_(-1e9), "the same features for all images"),
        (lambda s: s["layer3.0.conv1.weight"].view(-1)[5:6].fill_(float("nan")), "NaN or infinite"),
    ],
)
def test_a_file_that_does_not_fill_the_trunk_exactly_is_refused(tmp_path, network, damage, sentence):
    state = network.state_dict()
    damage(state)
    torch.save(state, tmp_path / "bad.pth")
    with pytest.raises(RingbenchError, match=sentence) as caught:
        loading.load(spec(tmp_path / "bad.pth"))
    assert "bad.pth" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_arch_than_the_files_is_refused(checkpoint):
    with pytest.raises(RingbenchError, match="resnet50"):
        loading.load(spec(checkpoint, arch="resnet50"))


def test_the_step_counter_may_be_missing(tmp_path, network):
    state = {k: v for k, v in network.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "old.pth")
    assert loading.load(spec(tmp_path / "old.pth")).certificate["matched"] == 100


@pytest.mark.parametrize(("arch", "stem"), [("resnet18", "imagenet"), ("resnet50", "imagenet"), ("resnet18", "cifar")])
def test_arch_and_stem_are_told_from_the_tensors(tmp_path, arch, stem):
    from backbones.trunk import Trunk

    torch.save(Trunk(arch, stem).state_dict(), tmp_path / "x.pth")
    assert loading.inspect(tmp_path / "x.pth") == {"arch": arch, "stem": stem, "format": "torchvision", "pipeline": PIPELINE}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_point_type_is_read_and_named(tmp_path, network, dtype):
    torch.save(network.to(dtype).state_dict(), tmp_path / "enc.pth")
    backbone = loading.load(spec(tmp_path / "enc.pth"))
    assert backbone.certificate["dtypes"][str(dtype).removeprefix("torch.")] == 100
    assert torch.equal(backbone.trunk.conv1.weight, network.conv1.weight.float())


def test_quantised_weights_are_refused(tmp_path, network):
    state = network.state_dict()
    state["layer1.0.conv1.weight"] = (state["layer1.0.conv1.weight"] * 100).to(torch.int8)
    torch.save(state, tmp_path / "enc.pth")
    with pytest.raises(RingbenchError, match=r"layer1\.0\.conv1\.weight is int8"):
        loading.load(spec(tmp_path / "enc.pth"))


def test_a_loaded_trunk_no_longer_depends_on_its_file(tmp_path, network):
    from safetensors.torch import save_file

    save_file(network.state_dict(), tmp_path / "enc.safetensors")
    backbone = loading.load(spec(tmp_path / "enc.safetensors"))
    (tmp_path / "enc.safetensors").write_bytes(b"")
    assert torch.equal(backbone.trunk.conv1.weight, network.conv1.weight)


def test_an_unknown_format_lists_the_known_ones(checkpoint):
    with pytest.raises(UsageError, match="torchvision"):
        loading.load(spec(checkpoint, format="caffe"))


def test_a_file_with_another_digest_is_refused(checkpoint):
    assert loading.load(spec(checkpoint, sha256=files.sha256_file(checkpoint)[:8]))
    with pytest.raises(RingbenchError, match="expects 00000000"):
        loading.load(spec(checkpoint, sha256="00000000"))


def test_a_file_is_hashed_once_until_it_changes(checkpoint, monkeypatch):
    hashed, digest = [], files.hashlib.file_digest
    monkeypatch.setattr(files.hashlib, "file_digest", lambda *arguments: hashed.append(1) or digest(*arguments))
    first = loading.load(spec(checkpoint, sha256=files.sha256_file(checkpoint))).certificate["file_sha256"]
    assert len(hashed) == 1
    times = checkpoint.stat().st_atime_ns, checkpoint.stat().st_mtime_ns
    content = bytearray(checkpoint.read_bytes())
    content[-1] ^= 1
    checkpoint.write_bytes(content)
    os.utime(checkpoint, ns=times)
    assert files.sha256_file(checkpoint) != first


def test_a_missing_url_file_says_where_to_put_it_without_touching_the_network(isolated_home, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was touched"))
    entry = spec("https://example.org/zoo/enc-0123abcd.pth", sha256="0123abcd")
    with pytest.raises(Unavailable, match=r"enc-0123abcd\.pth is not in") as caught:
        sources.require(entry)
    assert str(isolated_home / "checkpoints") in str(caught.value)


def test_files_of_one_name_from_two_addresses_are_two_files():
    one, other = (sources.path_of(spec(f"https://{host}.org/checkpoint.pth")) for host in "ab")
    assert one != other
    assert one.name.endswith("-checkpoint.pth")


def test_an_untrained_recipe_says_how_it_is_trained():
    assert "recipe iring_imagenet" in sources.missing(spec("recipe:iring_imagenet"))
