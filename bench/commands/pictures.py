"""Commands that draw: show-predictions."""

from pathlib import Path
from typing import Annotated

import typer

from bench.commands.options import DataDir


def show_predictions(
    ctx: typer.Context,
    imageset: Annotated[str, typer.Argument(metavar="IMAGESET", help="The image set they were made on.")],
    predictions: Annotated[Path, typer.Argument(metavar="FILE", help="The predictions.json a run keeps, or other COCO results.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the pictures.")] = Path("pictures"),
    images: Annotated[int, typer.Option(metavar="N", min=1, help="How many of the test images.")] = 8,
    score: Annotated[float, typer.Option(metavar="S", min=0, max=1, help="Draw no prediction with a lower score.")] = 0.5,
    data: DataDir = None,
) -> None:
    """Draw ground truth and predictions side by side, as PNG."""
    from bench import registry
    from bench import show_predictions as showing
    from ringbench import places

    spec = registry.load(ctx.obj.registry).find("imagesets", imageset)
    showing.command(spec, data or places.data(), predictions, out, n=images, score=score)
