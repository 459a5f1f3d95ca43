"""Commands that make encoders: register, convert, pretrain."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.commands.options import ArchName, Checkpoint, CheckpointKey, DataDir, Device, FormatName, PipelineText, StemName


def register(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name it shall have.")],
    checkpoint: Checkpoint,
    arch: ArchName = None,
    stem: StemName = None,
    format: FormatName = "auto",
    checkpoint_key: CheckpointKey = None,
    pipeline: PipelineText = None,
    imageset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tell whether this set looks like the inputs of training.")
    ] = None,
    alias: Annotated[list[str] | None, typer.Option(metavar="A", help="Another name; repeatable.")] = None,
) -> None:
    """Write a checkpoint into your registry, once it is read."""
    from bench import editing

    editing.register(ctx.obj.registry, name, checkpoint, arch, format, checkpoint_key, pipeline, alias or [], stem, imageset)


def convert(
    checkpoint: Checkpoint,
    to: Annotated[Literal["safetensors", "detectron2", "torchvision"], typer.Option(help="Who shall read it.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="What to write; a card of the same name in .json goes beside it.")],
    arch: ArchName = None,
    stem: StemName = None,
    format: FormatName = "auto",
    checkpoint_key: CheckpointKey = None,
    pipeline: PipelineText = None,
) -> None:
    """Write the trunk of a checkpoint for others to read."""
    from bench import convert as converting

    converting.convert(checkpoint, to, out, arch, stem, format, checkpoint_key, pipeline)


def pretrain(
    ctx: typer.Context,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A name of `bench list recipes`, or a file that extends one.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another value, such as epochs=20; repeatable.")
    ] = None,
    device: Device = "auto",
    data: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="Checkpoints and log. Default: runs/RECIPE.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an encoder of this name that was trained otherwise.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would cost and stop.")] = False,
    nproc: Annotated[int, typer.Option(metavar="N", min=1, help="Processes, such as one for each GPU.")] = 1,
) -> None:
    """Train an encoder and register it. SIGTERM leaves a checkpoint and exit code 75: queue it again with --resume."""
    from bench import pretrain as training

    code = training.command(
        ctx.obj.registry,
        recipe,
        set_ or [],
        device=device,
        data=data,
        out=out,
        resume=resume,
        force=force,
        dry_run=dry_run,
        nproc=nproc,
    )
    raise typer.Exit(code)
