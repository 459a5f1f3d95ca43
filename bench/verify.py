"""`bench registry verify`: are the files of the backbones still what they were, and do the links to them still work?"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from rich.table import Table

from backbones import downloads, sources
from backbones.spec import BackboneSpec
from bench.page import page
from bench.registry import Registry
from ringbench.errors import RingbenchError, UsageError
from ringbench.network import offline

AT_ONCE = 8  # links asked side by side
HASH = {"published": "as published", "recorded": "unchanged", "new": "recorded now", None: "none to compare with"}


class Row(NamedTuple):
    name: str
    file: str
    hash: str
    link: str
    changed: str | None = None  # what is wrong with the file that is there
    gone: bool = False  # link dead, or a file of the user's own that is no longer there


def command(registry: Registry, patterns: list[str], *, online: bool) -> int:
    """Print one row for each backbone that is a file. 1: a file changed, 3: a link is dead or a file is gone, 0: all is well."""
    if online and (forbidden := offline()):
        raise UsageError(f"--online asks links, which {forbidden} forbids; leave one of them out")
    specs = [spec for spec in registry.match("backbones", patterns) if sources.path_of(spec) is not None]
    rows = list(_rows(specs, _links(specs) if online else {}))
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("name", "file", "hash", "link"):
        table.add_column(title, overflow="fold", no_wrap=title == "name")
    for row in rows:
        table.add_row(*row[:4])
    changed, gone = [row.changed for row in rows if row.changed], sum(row.gone for row in rows)
    there = sum(row.file != "not there" for row in rows)
    with page() as out:
        out.print(table)
        for sentence in changed:
            out.print(sentence)
        asked = "" if online else "; links were not asked (--online)"
        out.print(f"{len(rows)} backbones, {there} files there, {len(changed)} changed, {gone} gone{asked}")
    return 1 if changed else 3 if gone else 0


def _links(specs: list[BackboneSpec]) -> dict[str, str | None]:
    """What is wrong with the link of each source, each asked once."""
    urls = {spec.source: url for spec in specs if (url := sources.address(spec.source))}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(urls, pool.map(downloads.answer, urls.values()), strict=True))


def _rows(specs: list[BackboneSpec], links: dict[str, str | None]) -> Iterator[Row]:
    for spec in specs:
        path, fetched = sources.path_of(spec), sources.address(spec.source) is not None
        wrong = links.get(spec.source)
        link = (wrong or "works") if spec.source in links else "not asked" if fetched else ""
        if not path.is_file():
            own = not fetched and not spec.source.startswith("recipe:")
            yield Row(spec.name, "not there", "", link, gone=bool(wrong) or own)
            continue
        try:
            yield Row(spec.name, path.name, HASH[sources.check(spec, path)], link, gone=bool(wrong))
        except RingbenchError as error:
            yield Row(spec.name, path.name, "CHANGED", link, str(error), bool(wrong))
