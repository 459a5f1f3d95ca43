"""Learning rates at the moments the recipes name, and each optimizer against its formula in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from pretrain import optimizers
from pretrain import recipe as recipes


def test_the_papers_rate_falls_by_ten_at_epochs_200_and_250():
    recipe = recipes.load("iring_cifar10")
    rates = {epoch: optimizers.rate(recipe, epoch) for epoch in (0, 199.99, 200, 249.99, 250, 299.9)}
    assert rates == pytest.approx({0: 0.03, 199.99: 0.03, 200: 0.003, 249.99: 0.003, 250: 0.0003, 299.9: 0.0003})


def test_the_drops_move_with_the_number_of_epochs():
    recipe = recipes.load("iring_cifar10", ["epochs=30"])
    assert [optimizers.rate(recipe, epoch) for epoch in (19, 20, 25)] == pytest.approx([0.03, 0.003, 0.0003])


def test_the_rate_is_proportional_to_the_batch():
    assert optimizers.peak_rate(recipes.load("iring_cifar10", ["batch_size=1024"])) == pytest.approx(0.12)
    assert optimizers.peak_rate(recipes.load("cmc_cifar10")) == pytest.approx(0.03)
    assert optimizers.peak_rate(recipes.load("simclr_cifar10")) == pytest.approx(1.0)


def test_warm_up_rises_to_the_peak_and_the_cosine_ends_at_zero():
    recipe = recipes.load("simclr_imagenet", ["epochs=110", "warmup_epochs=10"])
    peak = optimizers.peak_rate(recipe)
    assert [optimizers.rate(recipe, epoch) for epoch in (0, 5, 10, 60, 110)] == pytest.approx([0, peak / 2, peak, peak / 2, 0])
    assert optimizers.rate(recipe, 35) == pytest.approx(peak * (1 + math.cos(math.pi / 4)) / 2)


def test_lars_follows_its_formula_and_leaves_vectors_to_sgd():
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    W, b = (p.detach().numpy().copy() for p in (layer.weight, layer.bias))
    v, u = np.zeros_like(W), np.zeros_like(b)
    optimizer = optimizers.LARS(layer.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1, trust=0.01)
    for _ in range(3):
        x = torch.randn(4, 3, dtype=torch.float64)
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        g = layer.weight.grad.numpy() + 0.1 * W
        v = 0.9 * v + 0.01 * np.linalg.norm(W) / np.linalg.norm(g) * g
        u = 0.9 * u + layer.bias.grad.numpy()
        W, b = W - 0.5 * v, b - 0.5 * u
        optimizer.step()
        np.testing.assert_allclose(layer.weight.detach().numpy(), W, rtol=1e-12)
        np.testing.assert_allclose(layer.bias.detach().numpy(), b, rtol=1e-12)


def test_lars_moves_nothing_without_a_gradient_and_survives_zero_weights():
    weight = nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.zeros(2, 2)
    optimizers.LARS([weight], lr=1.0).step()
    assert (weight == 0).all()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_recipes_momentum_and_weight_decay_reach_the_optimizer(name):
    """Goyal et al. 2017, and Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    changes = [f"optimizer={name}", "momentum=0.8", "weight_decay=0.1", "lr=0.05", "batch_size=256"]
    optimizer = optimizers.make(recipes.load("ir_cifar10", changes), layer)
    w, m, v = layer.weight.detach().numpy().copy(), 0, 0
    for t in range(1, 5):
        optimizer.zero_grad()
        layer(torch.randn(4, 3, dtype=torch.float64)).square().sum().backward()
        g = layer.weight.grad.numpy().copy()
        if name == "sgd":
            m = 0.8 * m + g + 0.1 * w
            w = w - 0.05 * m
        else:
            m, v = 0.8 * m + 0.2 * g, 0.999 * v + 0.001 * g * g
            step = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            w = w - 0.05 * 0.1 * w - 0.05 * step
        optimizer.step()
        np.testing.assert_allclose(layer.weight.detach().numpy(), w, rtol=1e-12)
