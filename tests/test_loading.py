import functools
import http.server
import threading

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
        (lambda s: s.update({f"x.{k}": s.pop(k) for k in list(s)}), r"fills 0 of 100 .*look like: x\.conv1\.weight"),
        (lambda s: s.update({"layer1.2.conv1.weight": torch.zeros(1)}), "has 1 trunk tensors that a resnet18 has not"),
        (lambda s: s.update({"conv1.weight": torch.zeros(64, 3, 3, 3)}), r"\(64, 3, 3, 3\), a resnet18 with imagenet stem needs"),
        (lambda s: s["layer2.0.bn1.running_var"].neg_(), "negative variance"),
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
    assert loading.inspect(tmp_path / "x.pth") == {"arch": arch, "stem": stem, "format": "torchvision"}


def test_an_unknown_format_lists_the_known_ones(checkpoint):
    with pytest.raises(UsageError, match="torchvision"):
        loading.load(spec(checkpoint, format="caffe"))


def test_a_file_with_another_digest_is_refused(checkpoint):
    assert loading.load(spec(checkpoint, sha256=files.sha256_file(checkpoint)[:8]))
    with pytest.raises(RingbenchError, match="expects 00000000"):
        loading.load(spec(checkpoint, sha256="00000000"))


def test_a_missing_url_file_says_where_to_put_it_without_touching_the_network(isolated_home, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was touched"))
    entry = spec("https://example.org/zoo/enc-0123abcd.pth", sha256="0123abcd")
    with pytest.raises(Unavailable, match=r"enc-0123abcd\.pth is not in") as caught:
        sources.require(entry)
    assert str(isolated_home / "checkpoints") in str(caught.value)


def test_a_download_that_cannot_be_made_leaves_no_file(isolated_home):
    with pytest.raises(Unavailable, match="put it at"):
        sources.require(spec("http://127.0.0.1:9/enc.pth"), download=True)
    assert not [path for path in isolated_home.rglob("*") if path.is_file()]


@pytest.fixture
def server(tmp_path_factory):
    """A loopback web server over a folder."""
    folder = tmp_path_factory.mktemp("served")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def test_a_download_is_checked_and_used_again(server, checkpoint, isolated_home):
    folder, url = server
    digest = files.sha256_file(checkpoint)[:8]
    name = f"enc-{digest}.pth"
    (folder / name).write_bytes(checkpoint.read_bytes())
    entry = spec(f"{url}/{name}", sha256=digest)
    first = sources.require(entry, download=True)
    assert first == isolated_home / "checkpoints" / name
    (folder / name).unlink()
    assert sources.require(entry) == first


def test_a_download_with_another_digest_is_not_kept(server, isolated_home):
    folder, url = server
    (folder / "enc.pth").write_bytes(b"<html>not found</html>")
    with pytest.raises(RingbenchError, match="expects 0123abcd"):
        sources.require(spec(f"{url}/enc.pth", sha256="0123abcd"), download=True)
    assert not list((isolated_home / "checkpoints").iterdir())


def test_files_of_one_name_from_two_addresses_are_two_files():
    one, other = (sources.path_of(spec(f"https://{host}.org/checkpoint.pth")) for host in "ab")
    assert one != other
    assert one.name.endswith("-checkpoint.pth")


def test_a_download_that_breaks_off_is_not_kept(isolated_home):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        with pytest.raises(Unavailable, match="cannot be fetched"):
            sources.require(spec(f"http://127.0.0.1:{running.server_address[1]}/enc.pth"), download=True)
        running.shutdown()
    assert not [path for path in isolated_home.rglob("*") if path.is_file()]


def test_an_untrained_recipe_says_how_it_is_trained():
    assert "recipe iring_imagenet" in sources.missing(spec("recipe:iring_imagenet"))
