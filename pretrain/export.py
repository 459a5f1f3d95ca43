"""A finished encoder as a file: the trunk's tensors under torchvision's names in safetensors, and a card in JSON beside it."""

import json
import subprocess
from pathlib import Path

from safetensors.torch import save

from backbones.trunk import trunk_sha256
from pretrain.trainer import Trainer
from ringbench import files
from ringbench.versions import versions


def write(trainer: Trainer, path: Path) -> dict:
    """Write the trunk as it is after the last step to `path`, and return its card. Heads and memories stay in the checkpoints."""
    recipe, trunk = trainer.recipe, trainer.learner.encoder.trunk
    said = {"arch": recipe.arch, "stem": recipe.stem, "pipeline": recipe.pipeline}
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in trunk.state_dict().items()}
    card = {
        **said,
        "recipe": recipe.model_dump(),
        "trunk_sha256": trunk_sha256(trunk),
        "steps": trainer.step,
        "data": {
            "imageset": trainer.images.spec.name,
            "images": len(trainer.trained),
            "fingerprint": trainer.images.fingerprint,
            "split_hash": trainer.images.split_hash,
        },
        "best_knn": trainer.best,
        "log": [json.loads(line) for line in trainer.log.path.read_text().splitlines() if '"epoch"' in line],
        "run": str(trainer.around.out.absolute()),
        "device": str(trainer.around.device),
        "git": git_state(),
        "versions": versions(),
    }
    files.write_json(path.with_suffix(".json"), card)  # first: weights without a card are nobody's
    with files.atomic_path(path) as temporary:
        temporary.write_bytes(save(state, metadata={"ringbench": json.dumps(said, sort_keys=True)}))
    return card


def git_state() -> dict[str, str | bool] | None:
    """The commit of the project's own source and whether it was changed since; None where it is no clone."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # an environment may lie inside another project's clone
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None
