"""`bench demo`: the main job on real images that come with scikit-learn, in a few minutes on two cores."""

from pathlib import Path

from bench import board, registry, run
from bench.plan import Options
from ringbench import places

BACKBONES = ["random_resnet18", "random_resnet50"]
TASKS = ["digits_linear", "digits_logreg", "digits_knn"]
RESULTS, BOARD = Path("results") / "demo", Path("leaderboard.csv")


def main() -> int:
    """Evaluate two untrained networks on three tasks of the handwritten digits, show the leaderboard and write it as CSV."""
    print(f"Evaluating {', '.join(BACKBONES)} on {', '.join(TASKS)}: 1,797 real handwritten digits.\n")
    code = run.command(registry.load(), Options(RESULTS, places.data()), backbones=BACKBONES, tasks=TASKS, seeds=[0])
    if code:
        return code
    print()
    board.show(RESULTS)
    board.write(RESULTS, "csv", BOARD)
    print(f"\nThe leaderboard is in {BOARD.absolute()}, the results behind it in {RESULTS.absolute()}.")
    print("Next: `bench list` shows what else there is, `bench doctor` what is missing on this machine.")
    return 0
