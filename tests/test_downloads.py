"""Files from elsewhere: fetched whole or not at all, trusted when first seen, checked ever after, verified on demand."""

import functools
import http.server
import json
import os
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backbones import downloads, sources
from backbones.spec import BackboneSpec
from bench import cli
from ringbench import files
from ringbench.errors import RingbenchError, Unavailable

WEIGHTS = b"PK\x03\x04" + os.urandom(3_000_000)
PAGE = b"<!DOCTYPE html><html>please log in</html>"


class Site:
    """What a web server does, and the requests it has seen."""

    def __init__(self) -> None:
        self.content, self.kind, self.version = WEIGHTS, "application/octet-stream", '"1"'
        self.codes: list[int] = []  # to answer first, one for each request
        self.cut: list[int] = []  # bytes after which the connection breaks, one for each request that is served
        self.ranges = self.heads = True
        self.seen: list[tuple[str, str | None]] = []
        self.url = ""


class Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, site: Site, *arguments) -> None:
        self.site = site
        super().__init__(*arguments)

    def do_GET(self) -> None:
        site, asked = self.site, self.headers.get("Range")
        site.seen.append((self.command, asked))
        code = site.codes.pop(0) if site.codes else 405 if self.command == "HEAD" and not site.heads else 200
        if code != 200:
            return self.send_error(code)
        first = 0
        if asked and site.ranges and self.headers.get("If-Range", site.version) == site.version:
            first = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(site.content) - 1}/{len(site.content)}")
        self.send_header("Content-Type", site.kind)
        self.send_header("Content-Length", str(len(site.content) - first))
        if site.version:
            self.send_header("ETag", site.version)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(site.content[first : first + site.cut.pop(0)] if site.cut else site.content[first:])

    do_HEAD = do_GET

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(downloads, "PAUSE_S", 0.01)
    for variable in ("BENCH_OFFLINE", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.setenv(variable, "")  # and whatever a test sets is undone
    site = Site()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, site)) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        site.url = f"http://127.0.0.1:{running.server_address[1]}/zoo/enc.pth"
        yield site
        running.shutdown()


def spec(source: str, **fields) -> BackboneSpec:
    return BackboneSpec(name="enc", title="enc", arch="resnet18", source=source, pipeline="rgb", **fields)


def kept(home: Path) -> set[str]:
    """Names in the folder of checkpoints, locks aside."""
    return {path.name for path in (home / "checkpoints").iterdir() if path.suffix != ".lock"}


# --- fetching


def test_a_download_is_whole_remembered_and_used_again(site, isolated_home):
    path = sources.require(spec(site.url), download=True)
    assert path.read_bytes() == WEIGHTS and path.name.endswith("-enc.pth")
    assert kept(isolated_home) == {path.name, f"{path.name}.sha256.json"}
    assert json.loads(sources.record_of(path).read_text())["sha256"] == files.sha256_file(path)
    assert sources.require(spec(site.url), download=True) == path
    assert len(site.seen) == 1


def test_a_download_that_breaks_off_goes_on_where_it_was(site):
    site.cut = [1_000_000, 500_000]
    assert sources.require(spec(site.url), download=True).read_bytes() == WEIGHTS
    assert site.seen == [("GET", None), ("GET", "bytes=1000000-"), ("GET", "bytes=1500000-")]


def test_a_download_goes_on_in_a_later_call_and_is_never_taken_for_the_file(site, isolated_home):
    site.cut = [100, 100, 100]
    with pytest.raises(Unavailable, match=r"300 of 3000004 bytes came, tried 3 times\); fetch it elsewhere and put it at"):
        sources.require(spec(site.url), download=True)
    assert sources.missing(spec(site.url))
    assert sources.require(spec(site.url), download=True).read_bytes() == WEIGHTS
    assert site.seen[-1] == ("GET", "bytes=300-")


@pytest.mark.parametrize("change", ["version", "no version", "no ranges"])
def test_parts_of_two_versions_are_never_joined(site, change):
    site.cut = [1_000_000, 0, 0]
    site.version = None if change == "no version" else site.version
    with pytest.raises(Unavailable):
        sources.require(spec(site.url), download=True)
    site.content = WEIGHTS[::-1]
    site.content = b"PK" + site.content
    if change == "version":
        site.version = '"2"'
    site.ranges = change != "no ranges"
    assert sources.require(spec(site.url), download=True).read_bytes() == site.content


def test_a_part_longer_than_the_file_is_begun_anew(site, isolated_home):
    part = isolated_home / "checkpoints" / f".{files.digest(site.url)[:16]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 4_000_000)
    part.with_suffix(".version").write_text(site.version)
    site.codes = [416]
    assert sources.require(spec(site.url), download=True).read_bytes() == WEIGHTS


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_busy_server_is_asked_again(site, code):
    site.codes = [code, code]
    assert sources.require(spec(site.url), download=True).read_bytes() == WEIGHTS
    assert len(site.seen) == 3


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_dead_link_is_not_asked_again(site, code, isolated_home):
    site.codes = [code] * 9
    with pytest.raises(Unavailable, match=rf"HTTP {code} .*put it at {isolated_home}"):
        sources.require(spec(site.url), download=True)
    assert len(site.seen) == 1 and kept(isolated_home) == set()


def test_a_server_that_is_not_there_is_told(site, isolated_home):
    with pytest.raises(Unavailable, match=r"refused, tried 3 times"):
        sources.require(spec("http://127.0.0.1:9/enc.pth"), download=True)
    assert kept(isolated_home) == set()


@pytest.mark.parametrize(
    "content, told", [(PAGE, "HTML page"), (b'{"error": "quota"}', "JSON text"), (b"", "an empty file came")]
)
def test_a_page_in_place_of_the_file_is_refused_by_its_content(site, isolated_home, content, told):
    site.content = content
    with pytest.raises(Unavailable, match=told):
        sources.require(spec(site.url), download=True)
    assert kept(isolated_home) == set()


def test_another_file_than_the_published_one_is_not_kept(site, isolated_home):
    with pytest.raises(RingbenchError, match=r"the registry expects 0123abcd.*nothing was kept"):
        sources.require(spec(site.url, sha256="0123abcd"), download=True)
    assert kept(isolated_home) == set()


def test_two_that_ask_at_once_fetch_once(site):
    found = []
    asking = [threading.Thread(target=lambda: found.append(sources.require(spec(site.url), download=True))) for _ in range(3)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 3
    assert len(site.seen) == 1


@pytest.mark.parametrize("variable", ["BENCH_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_asks_nobody_and_says_where_the_file_goes(site, monkeypatch, isolated_home, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(Unavailable, match=rf"is not in {isolated_home}.* and {variable}=1 forbids to fetch it; put it there"):
        sources.require(spec(site.url), download=True)
    with pytest.raises(downloads.Failed, match=f"{variable}=1 forbids it"):
        downloads.fetch(site.url, isolated_home / "enc.pth", lambda part: None)
    assert site.seen == []


def test_a_file_of_the_hub_is_fetched_from_the_endpoint(site, monkeypatch):
    assert sources.address("hf:timm/resnet50.a1_in1k") == (
        "https://huggingface.co/timm/resnet50.a1_in1k/resolve/main/model.safetensors"
    )
    assert sources.address("hf:o/n/sub/a b.pth") == "https://huggingface.co/o/n/resolve/main/sub/a%20b.pth"
    name = sources.path_of(spec("hf:o/n")).name
    monkeypatch.setenv("HF_ENDPOINT", site.url.removesuffix("/zoo/enc.pth") + "/")
    site.content = (10).to_bytes(8, "little") + b"{}" + b" " * 8
    assert sources.require(spec("hf:o/n"), download=True).name == name
    assert site.seen == [("GET", None)]


# --- trust on first use


def test_a_file_that_changes_after_its_first_use_is_found_out(site):
    path = sources.require(spec(site.url), download=True)
    assert sources.check(spec(site.url), path) == "recorded"
    path.write_bytes(WEIGHTS[:-1] + b"!")
    with pytest.raises(RingbenchError, match=r"but had [0-9a-f]{12} when it was first used; it has changed"):
        sources.require(spec(site.url))
    sources.record_of(path).write_text("{}")
    with pytest.raises(RingbenchError, match="is no record of a sha256"):
        sources.require(spec(site.url))
    sources.record_of(path).unlink()
    assert sources.check(spec(site.url), path) == "new"


def test_a_file_dropped_by_hand_is_trusted_the_first_time(site):
    path = sources.path_of(spec(site.url))
    path.parent.mkdir(parents=True)
    path.write_bytes(WEIGHTS)
    assert sources.require(spec(site.url)) == path
    path.write_bytes(b"another")
    with pytest.raises(RingbenchError, match="it has changed"):
        sources.require(spec(site.url))
    assert site.seen == []


# --- bench registry verify


def verify(*words: str, code: int) -> str:
    result = CliRunner().invoke(cli.app, ["registry", "verify", *words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def entries(site, tmp_path):
    """Three backbones: from the site, from the site too, a file of one's own."""
    (tmp_path / "own.pth").write_bytes(b"mine")
    common = "title: t, arch: resnet18, pipeline: rgb"
    Path("registry.yaml").write_text(
        "backbones:\n"
        f"  zoo_a: {{{common}, source: '{site.url}'}}\n"
        f"  zoo_b: {{{common}, source: '{site.url}?b'}}\n"
        f"  own: {{{common}, source: ./own.pth, sha256: {files.sha256_file(tmp_path / 'own.pth')}}}\n"
    )


def cells(output: str, name: str) -> str:
    return " ".join(next(line for line in output.splitlines() if line.split()[:1] == [name]).split())


def test_verify_hashes_what_is_there_and_asks_no_link_unasked(entries, site):
    sources.require(spec(site.url), download=True)
    site.seen.clear()
    told = verify("zoo_*", "own", code=0)
    assert cells(told, "zoo_a").endswith("-enc.pth unchanged not asked")
    assert cells(told, "zoo_b") == "zoo_b not there not asked"
    assert cells(told, "own") == "own own.pth as published"
    assert "3 backbones, 2 files there, 0 changed, 0 gone; links were not asked" in told
    assert site.seen == []


def test_verify_tells_a_changed_file_and_a_dead_link_by_its_exit_code(entries, site, tmp_path):
    assert cells(verify("zoo_*", "--online", code=0), "zoo_b").endswith("works")
    site.codes = [404, 404]
    told = verify("zoo_*", "--online", code=3)
    assert cells(told, "zoo_a").endswith("HTTP 404 Not Found") and "2 gone" in told
    (tmp_path / "own.pth").write_bytes(b"changed")
    told = verify("zoo_*", "own", code=1)
    assert cells(told, "own") == "own own.pth CHANGED" and "the registry expects" in told
    (tmp_path / "own.pth").unlink()
    assert cells(verify("own", code=3), "own") == "own not there"


def test_verify_sees_a_web_page_and_knows_servers_without_head(entries, site):
    site.heads = False
    assert cells(verify("zoo_a", "--online", code=0), "zoo_a").endswith("works")
    assert [method for method, _ in site.seen] == ["HEAD", "GET"]
    site.kind = "text/html"
    assert "is a web page, not a file" in verify("zoo_a", "--online", code=3)


def test_verify_online_and_offline_contradict_each_other(entries, site):
    result = CliRunner().invoke(cli.app, ["registry", "verify", "--online", "--offline"])
    assert result.exit_code == 2 and "--online asks links, which BENCH_OFFLINE=1 forbids" in result.stderr
    assert site.seen == []
