"""`bench demo`: the main job on real images that come with scikit-learn, in a few minutes on two cores."""

from pathlib import Path

from bench import board, pretrain, registry, run
from bench.plan import Options
from ringbench import places

CONTROL, RECIPES = "random_resnet18x0.5", ["ir_digits", "iring_digits"]
TASKS = ["digits_linear", "digits_logreg", "digits_knn"]
RUNS, RESULTS, BOARD = Path("runs"), Path("results") / "demo", Path("leaderboard.csv")


def main() -> int:
    """Train two small encoders on the handwritten digits, and measure them beside the same network with random weights."""
    print("Training on 1,438 of scikit-learn's 1,797 real handwritten digits.\n")
    for recipe in RECIPES:
        code = pretrain.command(None, recipe, [], out=RUNS / recipe, resume=True)
        if code:
            return code
        print(flush=True)
    print(f"Evaluating on {', '.join(TASKS)}: the other 359 are the test.\n")
    options = Options(RESULTS, places.data(), force=True)  # encoders of an earlier demo may have been others
    code = run.command(registry.load(), options, backbones=[CONTROL, *RECIPES], tasks=TASKS, seeds=[0])
    if code:
        return code
    print()
    board.show(RESULTS)
    board.write(RESULTS, "csv", BOARD)
    print(f"\nThe leaderboard is in {BOARD.absolute()}, the results behind it in {RESULTS.absolute()},")
    print(f"the encoders in {places.checkpoints()}, their logs in {RUNS.absolute()}.")
    print("Next: `bench list` shows what else there is, `bench doctor` what is missing on this machine.")
    return 0
