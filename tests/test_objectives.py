"""Each objective against the paper's formula, written out as loops over Python floats; gradients by central differences."""

import logging
import math

import numpy as np
import pytest
import torch

from pretrain.negatives import Ball, Ring, Uniform
from pretrain.objectives import OBJECTIVES, get
from pretrain.objectives.balanced import Balanced
from pretrain.objectives.cmc import CMC
from pretrain.objectives.decoupled import DCL, DCLW
from pretrain.objectives.instance_discrimination import InstanceDiscrimination
from pretrain.objectives.local_aggregation import LocalAggregation
from pretrain.objectives.moco import MoCo
from pretrain.objectives.simclr import SimCLR
from pretrain.objectives.supervised import Supervised
from pretrain.similarity import BLOCK, log_sum_exp, unit
from ringbench.errors import RingbenchError, UsageError

N, DIM, B, K = 37, 5, 4, 9
INDEX = torch.tensor([36, 0, 11, 5])
RINGS = [(0, 100), (60, 100), (40, 85), (90, 99)]


def embeddings(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def uniforms() -> np.ndarray:
    """The numbers an objective draws from `generator()`."""
    return torch.rand(B, K - 1, generator=generator(), dtype=torch.float64).numpy()


# The reference: nothing but loops.


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))


def dot(a, b):
    """The bank's vectors are used as they are (they start with other lengths than 1)."""
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a))


def ring_members(similarity: dict[int, float], w_l: float, w_u: float) -> list[int]:
    """Candidates {name: similarity} -> the names in the ring."""
    ordered = sorted(similarity, key=similarity.get)
    m = len(ordered)
    inside = [name for r, name in enumerate(ordered, 1) if w_l * m < 100 * r <= w_u * m]
    return inside or [next(name for r, name in enumerate(ordered, 1) if 100 * r > w_l * m)]


def reference_ir(z, bank, window, tau, form="softmax"):
    total = 0.0
    scores = []
    for i in range(B):
        s = {j: dot(z[i], bank[j]) for j in range(N)}
        own = int(INDEX[i])
        members = sorted(ring_members({j: s[j] for j in s if j != own}, *window))
        drawn = [members[int(u * len(members))] for u in uniforms()[i]]
        scores.append([s[own] / tau] + [s[j] / tau for j in drawn])
    if form == "softmax":
        for row in scores:
            total -= math.log(math.exp(row[0]) / sum(math.exp(x) for x in row))
        return total / B
    Z = np.mean(np.exp(reference_ir.first_scores)) * N if reference_ir.first_scores is not None else None
    if Z is None:
        reference_ir.first_scores = scores
        Z = np.mean(np.exp(scores)) * N
    for row in scores:
        P = [math.exp(x) / Z for x in row]
        noise = (K - 1) / N
        total -= math.log(P[0] / (P[0] + noise)) + sum(math.log(1 - p / (p + noise)) for p in P[1:])
    return total / B


reference_ir.first_scores = None


def reference_moco(q, k, queue, window, tau):
    total = 0.0
    for i in range(B):
        s = {j: cosine(q[i], queue[j]) for j in range(len(queue))}
        positive = math.exp(cosine(q[i], k[i]) / tau)
        negative = sum(math.exp(s[j] / tau) for j in ring_members(s, *window))
        total -= math.log(positive / (positive + negative))
    return total / B


def reference_views(z1, z2, window):
    """For each of the 2B views: similarity to the positive, similarities to the negatives."""
    views = [*z1, *z2]
    for i in range(2 * B):
        positive = (i + B) % (2 * B)
        s = {k: cosine(views[i], views[k]) for k in range(2 * B) if k not in (i, positive)}
        yield cosine(views[i], views[positive]), [s[k] for k in ring_members(s, *window)]


def reference_simclr(z1, z2, window, tau):
    terms = reference_views(z1, z2, window)
    return np.mean([-math.log(math.exp(p / tau) / (math.exp(p / tau) + sum(math.exp(x / tau) for x in n))) for p, n in terms])


def reference_dcl(z1, z2, window, tau, weights=(1.0,) * B):
    terms = enumerate(reference_views(z1, z2, window))
    return np.mean([-weights[i % B] * p / tau + math.log(sum(math.exp(x / tau) for x in n)) for i, (p, n) in terms])


def reference_balanced(z1, z2, window, alpha, lambda_, scale, positive_in_sum):
    losses = []
    for p, n in reference_views(z1, z2, window):
        total = sum(math.exp(alpha * x) for x in [*n, *([p] if positive_in_sum else [])])
        losses.append(scale * (-p + lambda_ / alpha * math.log(total)))
    return np.mean(losses)


def reference_la(z, bank, assignment, background, tau):
    total = 0.0
    for i in range(B):
        own = int(INDEX[i])
        s = {j: dot(z[i], bank[j]) for j in range(N)}
        near = set(sorted(s, key=s.get)[-background:]) | {own}
        close = {j for run in assignment for j in range(N) if run[j] == run[own]}
        weight = {j: math.exp(s[j] / tau) for j in near}
        total -= math.log(sum(weight[j] for j in near & close) / sum(weight.values()))
    return total / B


def assert_equal_to(reference, loss, z: torch.Tensor, tolerance: float = 1e-6) -> None:
    """Loss and gradient in z against `reference(z as an array)` and its central differences."""
    z = z.clone().requires_grad_()
    value = loss(z)
    (gradient,) = torch.autograd.grad(value, z)
    x = z.detach().numpy()
    assert value.item() == pytest.approx(reference(x), rel=1e-9)
    h = 1e-6
    for position in np.ndindex(x.shape):
        plus, minus = x.copy(), x.copy()
        plus[position] += h
        minus[position] -= h
        difference = (reference(plus) - reference(minus)) / (2 * h)
        assert gradient[position].item() == pytest.approx(difference, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("window", RINGS)
def test_ir_and_iring_are_the_softmax_over_the_own_entry_and_draws_from_the_ring(window):
    objective = InstanceDiscrimination(N, DIM, K, 0.2, negatives=Ring(*window)).double()
    bank = objective.bank.vectors.numpy()
    assert_equal_to(
        lambda z: reference_ir(z, bank, window, 0.2),
        lambda z: objective(z, index=INDEX, generator=generator()),
        embeddings(B, DIM),
    )


def test_ir_with_nce_fixes_Z_after_the_first_batch():
    objective = InstanceDiscrimination(N, DIM, K, 0.2, form="nce").double()
    bank = objective.bank.vectors.numpy()
    first = embeddings(B, DIM, seed=1)
    reference_ir.first_scores = None
    expected = reference_ir(first.numpy(), bank, (0, 100), 0.2, "nce")
    assert objective(first, index=INDEX, generator=generator()).item() == pytest.approx(expected)
    assert_equal_to(
        lambda z: reference_ir(z, bank, (0, 100), 0.2, "nce"),
        lambda z: objective(z, index=INDEX, generator=generator()),
        embeddings(B, DIM),
    )


def test_nce_with_a_ring_is_refused():
    with pytest.raises(UsageError, match="uniform"):
        InstanceDiscrimination(N, DIM, K, negatives=Ring(90, 99), form="nce")


@pytest.mark.parametrize("window", RINGS)
@pytest.mark.parametrize("stream", [0, 1])
def test_cmc_compares_each_stream_with_the_other_streams_bank(window, stream):
    objective = CMC(N, DIM, K, 0.2, negatives=Ring(*window)).double()
    L, ab = objective.L.bank.vectors.numpy(), objective.ab.bank.vectors.numpy()
    fixed = embeddings(B, DIM, seed=1)

    def pair(z, other):
        return (z, other) if stream == 0 else (other, z)

    def reference(z):
        z_L, z_ab = pair(z, fixed.numpy())
        return reference_ir(z_L, ab, window, 0.2) + reference_ir(z_ab, L, window, 0.2)

    assert_equal_to(reference, lambda z: objective(*pair(z, fixed), index=INDEX, generator=generator()), embeddings(B, DIM))


@pytest.mark.parametrize("window", RINGS)
def test_moco_and_mocoring_are_infonce_over_the_queues_ring(window, monkeypatch):
    monkeypatch.setitem(BLOCK, "cpu", 3 * 50)  # blocks of 3 and 1 anchors
    objective = MoCo(50, DIM, 0.2, Ring(*window)).double()
    objective.queue.keys.copy_(unit(embeddings(50, DIM, seed=2)))
    queue, k = objective.queue.keys.numpy(), embeddings(B, DIM, seed=1)
    assert_equal_to(lambda q: reference_moco(q, k.numpy(), queue, window, 0.2), lambda q: objective(q, k), embeddings(B, DIM))


def test_moco_sends_no_gradient_to_the_keys():
    q, k = embeddings(B, DIM).requires_grad_(), embeddings(B, DIM, seed=1).requires_grad_()
    MoCo(50, DIM).double()(q, k).backward()
    assert k.grad is None and q.grad is not None


@pytest.mark.parametrize("window", RINGS)
def test_simclr_and_simclrring_are_nt_xent_with_the_positive_always_in_the_denominator(window):
    z2 = embeddings(B, DIM, seed=1)
    objective = SimCLR(0.3, Ring(*window))
    assert_equal_to(lambda z: reference_simclr(z, z2.numpy(), window, 0.3), lambda z: objective(z, z2), embeddings(B, DIM))


@pytest.mark.parametrize("window", RINGS)
def test_dcl_leaves_the_positive_out_of_the_denominator(window):
    z2 = embeddings(B, DIM, seed=1)
    objective = DCL(0.3, Ring(*window))
    assert_equal_to(lambda z: reference_dcl(z, z2.numpy(), window, 0.3), lambda z: objective(z, z2), embeddings(B, DIM))


def test_dclw_weighs_each_pair_by_two_minus_its_share():
    z1, z2 = embeddings(B, DIM), embeddings(B, DIM, seed=1)
    e = [math.exp(cosine(a, b) / 0.5) for a, b in zip(z1.tolist(), z2.tolist(), strict=True)]
    weights = [2 - x / np.mean(e) for x in e]
    assert_equal_to(lambda z: reference_dcl(z, z2.numpy(), (0, 100), 0.3, weights), lambda z: DCLW(0.3, sigma=0.5)(z, z2), z1)


@pytest.mark.parametrize("positive_in_sum", [False, True])
@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("window", RINGS[:3])
def test_the_balanced_loss_is_the_papers(positive_in_sum, scale, window):
    z2 = embeddings(B, DIM, seed=1)
    objective = Balanced(4, 2, scale, positive_in_sum, Ring(*window))
    assert_equal_to(
        lambda z: reference_balanced(z, z2.numpy(), window, 4, 2, scale or 4, positive_in_sum),
        lambda z: objective(z, z2),
        embeddings(B, DIM),
    )


def test_at_lambda_one_the_balanced_losses_are_dcl_and_nt_xent():
    z1, z2 = embeddings(B, DIM), embeddings(B, DIM, seed=1)
    torch.testing.assert_close(Balanced(4, 1)(z1, z2), DCL(1 / 4)(z1, z2))
    torch.testing.assert_close(Balanced(4, 1, positive_in_sum=True)(z1, z2), SimCLR(1 / 4)(z1, z2))


@pytest.mark.parametrize("background", [3, 12, N, 5000])
def test_local_aggregation_is_the_share_of_close_neighbours_among_the_background(background):
    objective = LocalAggregation(N, DIM, background, runs=3, temperature=0.2).double()
    assignment = torch.randint(0, 6, (3, N), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    objective.assignment.copy_(assignment)
    bank = objective.ir.bank.vectors.numpy()
    assert_equal_to(
        lambda z: reference_la(z, bank, assignment.tolist(), background, 0.2),
        lambda z: objective(z, index=INDEX, generator=generator()),
        embeddings(B, DIM),
    )


def test_local_aggregation_without_clusters_is_ir_when_a_warm_start_is_declared_and_refuses_otherwise(caplog):
    z = embeddings(B, DIM)
    warm, cold = (LocalAggregation(N, DIM, 10, clusters=4, runs=2, warm_start=w, k=K).double() for w in (True, False))
    loss = warm(z, index=INDEX, generator=generator())
    assert loss.item() == pytest.approx(reference_ir(z.numpy(), warm.ir.bank.vectors.numpy(), (0, 100), 0.07))
    with pytest.raises(RingbenchError, match="cluster"):
        cold(z, index=INDEX, generator=generator())
    with caplog.at_level(logging.INFO):
        cold.cluster(seed=0)
    assert "k-means by" in caplog.text
    assert cold(z, index=INDEX, generator=generator()).isfinite()


def test_k_means_finds_separate_clusters_and_repeats_with_its_seed():
    objective = LocalAggregation(60, DIM, runs=8, clusters=3)
    centres = torch.eye(DIM)[:3]
    objective.ir.bank.vectors.copy_(unit(centres.repeat_interleave(20, 0) + 0.05 * embeddings(60, DIM).float()))
    objective.cluster(seed=1)
    first = objective.assignment.clone()
    right = [1, 1, 1]  # one cluster a group, and not the same one; a single run may end in a local optimum
    assert any([len(set(part.tolist())) for part in run.split(20)] == right and len(run.unique()) == 3 for run in first)
    assert all(run.min() >= 0 and run.max() < 3 for run in first)
    objective.cluster(seed=1)
    assert torch.equal(objective.assignment, first)


def test_the_number_of_clusters_grows_with_the_images():
    assert LocalAggregation(1000, 4, runs=1).clusters == 23
    with pytest.raises(UsageError, match="clusters"):
        LocalAggregation(10, 4, clusters=11)


def test_the_supervised_control_is_cross_entropy_of_a_linear_classifier():
    objective = Supervised(3, DIM).double()
    labels = torch.tensor([0, 2, 1, 2])
    W, c = objective.classifier.weight.detach().numpy(), objective.classifier.bias.detach().numpy()

    def reference(x):
        logits = x @ W.T + c
        return np.mean([math.log(np.exp(row).sum()) - row[y] for row, y in zip(logits, labels.tolist(), strict=True)])

    assert_equal_to(reference, lambda z: objective(z, labels=labels), embeddings(B, DIM))


# Parity with lightly, where it has the loss.


@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_nt_xent_dcl_dclw_and_moco_equal_lightlys(tau):
    loss = pytest.importorskip("lightly.loss")
    z1, z2 = embeddings(16, 32).float(), embeddings(16, 32, seed=1).float()

    def both(ours, theirs):
        results = []
        for f in (ours, theirs):
            a, b = z1.clone().requires_grad_(), z2.clone().requires_grad_()
            value = f(a, b)
            results.append((value.detach(), *torch.autograd.grad(value, (a, b))))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)

    both(SimCLR(tau), loss.NTXentLoss(tau))
    both(DCL(tau), loss.DCLLoss(tau))
    both(DCLW(tau), loss.DCLWLoss(tau))

    moco, theirs = MoCo(64, 32, tau), loss.NTXentLoss(tau, memory_bank_size=(64, 32))
    theirs(z1, z2)  # lightly makes its bank at the first call
    for _ in range(6):  # 16 divides 64 evenly: the queue wraps around once and a half
        theirs.memory_bank.bank.copy_(moco.queue.keys)
        theirs.memory_bank.bank_ptr.copy_(moco.queue.position)
        a, b = z1.clone().requires_grad_(), z1.clone().requires_grad_()
        torch.testing.assert_close(moco(a, z2), theirs(b, z2))
        moco.remember(z1, z2)
        torch.testing.assert_close(theirs.memory_bank.bank, moco.queue.keys)


# One idea for all: the ring of all percentiles is the base objective, whatever the precision.


def built(name: str, negatives: Ring | None = None, tau: float = 0.07):
    sizes = {"ir": {"n": N, "k": K}, "cmc": {"n": N, "k": K}, "moco": {"size": 50}, "simclr": {}, "dcl": {}}
    torch.manual_seed(0)
    dim = {} if name in ("simclr", "dcl") else {"dim": DIM}
    return get(name)(**sizes[name], **dim, temperature=tau, negatives=negatives)


def loss_and_gradient(objective, dtype=torch.float32, zero: bool = False, autocast: bool = False):
    z = [embeddings(B, DIM, seed=s).to(dtype) for s in range(len(objective.embeddings))]
    if zero:
        z[0][0] = 0
    z = [x.requires_grad_() for x in z]
    needs = {"index": INDEX, "generator": generator()}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = objective(*z, **{name: needs[name] for name in objective.needs})
    loss.backward()
    return loss.detach(), z[0].grad


@pytest.mark.parametrize("name", ["ir", "cmc", "moco", "simclr", "dcl"])
def test_a_ring_of_all_percentiles_is_the_base_objective_bit_for_bit(name, monkeypatch):
    base = loss_and_gradient(built(name, Uniform()))
    monkeypatch.setattr(Ring, "everything", False)  # by way of the edges, not by the short cut
    for a, b in zip(base, loss_and_gradient(built(name, Ring(0, 100))), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["ir", "cmc", "moco", "simclr", "dcl"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("negatives", [Uniform(), Ball(80), Ring(90, 99)])
@pytest.mark.parametrize("zero", [False, True])
def test_a_temperature_of_a_hundredth_is_finite_in_half_precision_and_with_a_zero_vector(name, dtype, negatives, zero):
    loss, gradient = loss_and_gradient(built(name, negatives, tau=0.01), dtype, zero)
    assert loss.isfinite() and gradient.isfinite().all()
    assert gradient.dtype == dtype and loss.dtype == torch.float32
    if zero:
        assert not gradient[0].any()


@pytest.mark.parametrize("name", ["ir", "cmc", "moco", "simclr", "dcl"])
def test_autocast_does_not_touch_the_objective(name):
    inside = loss_and_gradient(built(name, Ring(40, 85)), autocast=True)
    for a, b in zip(inside, loss_and_gradient(built(name, Ring(40, 85))), strict=True):
        assert torch.equal(a, b)


def test_a_ring_far_below_the_most_similar_candidate_does_not_underflow():
    anchor = torch.eye(DIM)[:1]
    candidates = torch.cat([anchor, -anchor, -anchor, -anchor])  # at tau = 0.01 the ring lies 200 below the top
    value = log_sum_exp(anchor, candidates, 0.01, Ring(0, 75))
    torch.testing.assert_close(value, torch.tensor([-100 + math.log(3)]))


def test_a_batch_of_one_image_is_refused():
    for objective in (SimCLR(), DCL(), Balanced()):
        with pytest.raises(UsageError, match="no candidate"):
            objective(embeddings(1, DIM), embeddings(1, DIM))


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_positive_is_refused(tau):
    with pytest.raises(UsageError, match="temperature"):
        SimCLR(tau)


def test_every_objective_is_found_by_its_name_and_others_are_refused():
    for name in OBJECTIVES:
        assert get(name).embeddings
    with pytest.raises(UsageError, match="unknown objective 'simsiam'"):
        get("simsiam")
