"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable on stdout, everything human on stderr.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")]
DataDir = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", file_okay=False, help="Folder of the image sets, in place of $BENCH_DATA.")
]
ResultsDir = Annotated[Path, typer.Option("--results", metavar="DIR", file_okay=False, help="Folder of the result files.")]
TaskPatterns = Annotated[
    list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; name or glob, repeatable.")
]
ArchName = Annotated[str | None, typer.Option(metavar="NAME", help="Such as resnet50. Default: found in the file.")]
StemName = Annotated[str | None, typer.Option(metavar="NAME", help="Such as cifar_pad2. Default: the format's.")]
FormatName = Annotated[str, typer.Option(metavar="NAME", help="Layout of the file.")]
CheckpointKey = Annotated[str | None, typer.Option(metavar="K", help="Where in the file the weights are.")]
PipelineText = Annotated[str | None, typer.Option(metavar="P", help="Preprocessing. Default: the format's.")]
Checkpoint = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="The file with the weights.", exists=True, dir_okay=False)]
RESULTS = Path("results")
