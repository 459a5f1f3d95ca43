"""What the ring costs on top of its base objective: loss and gradient, in ratios of one run.

    python benchmarks/ring.py [ROUNDS]

MoCo with batch 256, a queue of 65,536 keys, 128 dimensions; instance discrimination with a bank of 50,000. In each round all
contenders run in turn, and a ratio is the median over the rounds, so that a machine whose speed drifts slows all of them.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from backbones.device import resolve_device
from pretrain.negatives import Ring, Uniform
from pretrain.objectives.instance_discrimination import InstanceDiscrimination
from pretrain.objectives.moco import MoCo

B, QUEUE, BANK, D, TAU = 256, 65_536, 50_000, 128, 0.07
W_L, W_U = 90, 99


def race(contenders: dict[str, Callable[[], Tensor]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of loss + backward of each contender in each round."""
    seconds = {name: [] for name in contenders}
    for round in range(rounds + 1):
        for name, loss in contenders.items():
            started = time.perf_counter()
            loss().backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if round > 0:  # the first only warms up
                seconds[name].append(time.perf_counter() - started)
    return seconds


def compare(seconds: dict[str, list[float]], ours: str, theirs: str, target: str = "") -> None:
    ratio = median(a / b for a, b in zip(seconds[ours], seconds[theirs], strict=True))
    print(f"{ours:<44} against {theirs:<36} {ratio:5.2f} x   {target}")


def leaves(device: torch.device) -> tuple[Tensor, Tensor, torch.Generator]:
    generator = torch.Generator(device).manual_seed(0)
    q, k = (torch.randn(B, D, generator=generator, device=device) for _ in range(2))
    return q.requires_grad_(), k, generator


def moco(rounds: int, device: torch.device) -> None:
    q, k, _ = leaves(device)
    base, uncut = MoCo(QUEUE, D, TAU, Uniform()).to(device), MoCo(QUEUE, D, TAU, Ring(0.001, 99.999)).to(device)
    half, ring = MoCo(QUEUE, D, TAU, Ring(W_L / 2, 94.5)).to(device), MoCo(QUEUE, D, TAU, Ring(W_L, W_U)).to(device)
    keys = base.queue.keys
    for other in (uncut, half, ring):
        other.queue.load_state_dict(base.queue.state_dict())

    def logits() -> tuple[Tensor, Tensor]:
        z = normalize(q)
        return (z * normalize(k)).sum(1, keepdim=True), z @ keys.T

    def textbook() -> Tensor:
        positive, negative = logits()
        zero = torch.zeros(B, dtype=torch.long, device=device)
        return cross_entropy(torch.cat([positive, negative], 1) / TAU, zero)

    lower, upper = ring.negatives.ranks(QUEUE)

    def full_sort() -> Tensor:
        positive, negative = logits()
        inside = negative.sort(dim=1).values[:, lower:upper]
        return (torch.cat([positive, inside], 1) / TAU).logsumexp(1).mean() - positive.mean() / TAU

    def topk() -> Tensor:
        positive, negative = logits()
        inside = negative.topk(QUEUE - lower, dim=1).values[:, QUEUE - upper :]
        return (torch.cat([positive, inside], 1) / TAU).logsumexp(1).mean() - positive.mean() / TAU

    ours = [lambda m=m: m(q, k) for m in (base, uncut, half, ring)]
    names = ["MoCo", "MoCoRing, start (0, 100)", "MoCoRing, half-way (45, 94.5)", "MoCoRing, end (90, 99)"]
    contenders = dict(zip(names, ours, strict=True))
    contenders |= {"textbook MoCo": textbook, "MoCoRing by a full sort": full_sort, "MoCoRing by topk": topk}
    with torch.no_grad():
        torch.testing.assert_close(ring(q, k), full_sort())
    seconds = race(contenders, rounds, device)
    print(f"batch {B}, queue {QUEUE}: textbook MoCo {median(seconds['textbook MoCo']) * 1e3:.0f} ms")
    compare(seconds, names[0], "textbook MoCo")
    compare(seconds, names[3], "textbook MoCo", "(target 1.25 or less)")
    for name in names[1:]:
        compare(seconds, name, "MoCo", "(target 1.25 or less)")
    compare(seconds, names[3], "MoCoRing by topk")
    compare(seconds, names[3], "MoCoRing by a full sort")


def instance_discrimination(rounds: int, device: torch.device) -> None:
    q, _, generator = leaves(device)
    ir, iring = (
        InstanceDiscrimination(BANK, D, temperature=TAU, negatives=negatives).to(device)
        for negatives in (Uniform(), Ring(W_L, W_U))
    )
    index = torch.randperm(BANK, generator=generator, device=device)[:B]
    vectors = ir.bank.vectors

    def full_softmax() -> Tensor:
        return cross_entropy(normalize(q) @ vectors.T / TAU, index)

    def by_topk() -> Tensor:
        s = normalize(q) @ vectors.T
        outer, inner = BANK * (100 - W_L) // 100, BANK * (100 - W_U) // 100
        inside = s.topk(outer, dim=1).values[:, inner:]
        drawn = inside.gather(1, torch.randint(outer - inner, (B, ir.k - 1), generator=generator, device=device))
        own = s.gather(1, index[:, None])
        return (torch.cat([own, drawn], 1) / TAU).logsumexp(1).mean() - own.mean() / TAU

    contenders = {
        "IR": lambda: ir(q, index=index, generator=generator),
        "IRing (90, 99)": lambda: iring(q, index=index, generator=generator),
        "full-bank softmax": full_softmax,
        "IRing by topk": by_topk,
    }
    seconds = race(contenders, rounds, device)
    print(f"batch {B}, bank {BANK}, k {ir.k}: full-bank softmax {median(seconds['full-bank softmax']) * 1e3:.0f} ms")
    compare(seconds, "IR", "full-bank softmax")
    compare(seconds, "IRing (90, 99)", "full-bank softmax", "(target 1.25 or less)")
    compare(seconds, "IRing (90, 99)", "IRing by topk")


def main() -> None:
    rounds, device = int(sys.argv[1]) if len(sys.argv) > 1 else 7, resolve_device()
    print(f"{device}, {torch.get_num_threads()} threads")
    moco(rounds, device)
    instance_discrimination(rounds, device)


if __name__ == "__main__":
    main()
