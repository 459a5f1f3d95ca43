"""Commands about what there is: list, show, validate, registry verify, doctor, setup."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.commands.options import AsJson


def list_entries(
    ctx: typer.Context,
    section: Annotated[
        Literal["backbones", "imagesets", "tasks", "protocols", "recipes"] | None, typer.Argument(show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What there is, by name."""
    from bench import listing, registry

    if section == "recipes":
        from bench import recipe_pages

        return recipe_pages.show_all(as_json)
    known = registry.load(ctx.obj.registry)
    sections = [section] if section else list(registry.SECTIONS)
    print(listing.as_json(known, sections), end="") if as_json else listing.show_sections(known, sections)


def show(
    ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="A name or alias from any section.")]
) -> None:
    """Everything about one name from any section."""
    from bench import recipe_pages, registry, showing
    from pretrain import recipe as recipes

    known = registry.load(ctx.obj.registry)
    trainable = recipes.is_file(name) or name in recipes.words()
    if not trainable or known.knows(name):
        showing.show_entry(known, name)
    if trainable:
        recipe_pages.show(name)


def validate(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="[REGISTRY]", help="Default: the one that is in use.")] = None,
) -> None:
    """Show every problem of the registry, with file and line."""
    from bench import registry

    overlay = file or ctx.obj.registry or registry.overlay()
    known, problems = registry.check(overlay)
    for problem in problems:
        print(problem)
    if problems:
        raise typer.Exit(2)
    counts = ", ".join(f"{len(getattr(known, section))} {section}" for section in registry.SECTIONS)
    print(
        f"no problems in {' and '.join(str(path) for path in (registry.PACKAGED, registry.ENCODERS, overlay) if path)}: {counts}"
    )


def verify(
    ctx: typer.Context,
    name: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Backbones, names or globs. Default: all.")
    ] = None,
    online: Annotated[bool, typer.Option("--online", help="Ask every link whether it still works.")] = False,
) -> None:
    """Hash the files of backbones again, and tell what has changed or gone."""
    from bench import registry
    from bench import verify as verifying

    raise typer.Exit(verifying.command(registry.load(ctx.obj.registry), name or ["*"], online=online))


def doctor(ctx: typer.Context) -> None:
    """What works on this machine, and exactly what is missing."""
    from bench import doctor as examination

    examination.main(ctx.obj.registry)


def setup(
    part: Annotated[Literal["detection"], typer.Argument(help="What to make ready.")],
    from_source: Annotated[
        bool, typer.Option("--from-source", help="Build the official source, in minutes, in place of a repacked wheel.")
    ] = False,
) -> None:
    """Install what pip cannot install by name: Detectron2."""
    from bench import setup_detection

    setup_detection.command(from_source=from_source)
