import copy
import math
from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pretrain.memory import EMA, MemoryBank, Queue
from pretrain.objectives.instance_discrimination import InstanceDiscrimination
from pretrain.objectives.moco import MoCo
from pretrain.shuffle_bn import shuffle, split_batch_norm, unshuffle
from pretrain.similarity import unit
from ringbench.errors import UsageError


def test_a_bank_starts_uniform_with_unit_expected_squared_norm():
    bank = MemoryBank(20_000, 128, generator=torch.Generator().manual_seed(0)).vectors
    a = 1 / math.sqrt(128 / 3)
    assert bank.min() >= -a and bank.max() <= a
    assert bank.square().sum(1).mean().item() == pytest.approx(1, abs=0.002)
    assert bank.std().item() == pytest.approx(a / math.sqrt(3), rel=0.002)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_bank_moves_to_the_normalised_mean_of_old_and_new_and_nowhere_else(momentum):
    bank = MemoryBank(10, 4, momentum)
    before, z, index = bank.vectors.clone(), torch.randn(3, 4) * 5, torch.tensor([7, 0, 3])
    bank.update(z, index)
    for i, j in enumerate(index.tolist()):
        mixed = momentum * before[j] + (1 - momentum) * z[i] / z[i].norm()
        torch.testing.assert_close(bank.vectors[j], mixed / mixed.norm())
    others = [j for j in range(10) if j not in index]
    assert torch.equal(bank.vectors[others], before[others])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_a_queue_holds_the_last_keys_whatever_the_batch_sizes(size, batches):
    queue = Queue(size, 1)
    expected = deque(queue.keys[:, 0].tolist(), maxlen=size)
    sign = 1.0
    for b in batches:
        keys = torch.empty(b, 1)
        for i in range(b):
            keys[i], sign = sign * (i + 1), -sign  # normalised to +1 or -1
        queue.enqueue(keys)
        expected.extend(keys.sign()[:, 0].tolist())
    oldest = int(queue.position)
    assert queue.keys.roll(-oldest, 0)[:, 0].tolist() == list(expected)


def test_a_queue_starts_with_random_unit_keys():
    keys = Queue(5000, 8, torch.Generator().manual_seed(0)).keys
    torch.testing.assert_close(keys.norm(dim=1), torch.ones(5000))
    assert keys.mean(0).abs().max() < 0.02


@pytest.mark.parametrize("build", [lambda: MoCo(21, 4), lambda: InstanceDiscrimination(30, 4, k=6)])
def test_a_resumed_memory_is_identical_and_gives_the_next_loss(build, tmp_path):
    def step(objective, i):
        z = [torch.randn(8, 4, generator=torch.Generator().manual_seed(i + j)) for j in range(len(objective.embeddings))]
        index = torch.randperm(30, generator=torch.Generator().manual_seed(i))[:8]
        needs = {"index": index, "generator": torch.Generator().manual_seed(i)}
        needs = {name: needs[name] for name in objective.needs}
        loss = objective(*z, **needs)
        objective.remember(*z, **needs)
        return loss

    running = build()
    for i in range(4):
        step(running, i)
    torch.save(running.state_dict(), tmp_path / "state.pt")
    resumed = build()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for name, value in running.state_dict().items():
        assert value == resumed.state_dict()[name] if isinstance(value, dict) else torch.equal(value, resumed.state_dict()[name])
    assert torch.equal(step(running, 4), step(resumed, 4))


def test_updating_a_bank_between_loss_and_backward_is_an_error_not_a_wrong_gradient():
    objective = InstanceDiscrimination(30, 4, k=6)
    z, index = torch.randn(3, 4, requires_grad=True), torch.tensor([1, 2, 3])
    loss = objective(z, index=index, generator=torch.Generator())
    objective.remember(z, index=index)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_moving_average_follows_parameters_and_leaves_buffers_alone():
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ema = EMA(encoder, momentum=0.9)
    start = copy.deepcopy(ema.encoder)
    with torch.no_grad():
        for tensor in (*encoder.parameters(), *encoder.buffers()):
            tensor.copy_(torch.ones_like(tensor) * 3)
    ema.update(encoder)
    for now, before in zip(ema.encoder.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(now.data, 0.9 * before.data + 0.1 * 3)
    for now, before in zip(ema.encoder.buffers(), start.buffers(), strict=True):
        assert torch.equal(now, before)
    assert not any(p.requires_grad for p in ema.parameters())
    assert not ema(torch.randn(5, 3)).requires_grad


@pytest.mark.parametrize("momentum", [-0.1, 1.1])
def test_impossible_momenta_are_refused(momentum):
    with pytest.raises(UsageError, match="momentum"):
        EMA(nn.Linear(1, 1), momentum)
    with pytest.raises(UsageError, match="momentum"):
        MemoryBank(3, 4, momentum)


@pytest.mark.parametrize("plain, shape", [(nn.BatchNorm2d(3), (6, 3, 4, 4)), (nn.BatchNorm1d(3), (6, 3))])
def test_split_batch_norm_normalises_each_part_with_its_own_statistics(plain, shape):
    nn.init.normal_(plain.weight)
    split = split_batch_norm(copy.deepcopy(plain), 2)
    x = torch.randn(shape)
    expected = torch.cat([plain(x[:3]), plain(x[3:])])
    assert torch.equal(split(x), expected)
    assert split.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(split.eval()(x), plain.eval()(x))
    with pytest.raises(UsageError, match="5 images"):
        split.train()(x[:5])


def test_unshuffling_undoes_shuffling():
    x = torch.arange(10.0)[:, None]
    shuffled, order = shuffle(x, torch.Generator().manual_seed(0))
    assert not torch.equal(shuffled, x)
    assert torch.equal(unshuffle(shuffled, order), x)


def test_a_zero_vector_stays_zero():
    z = torch.zeros(2, 3, requires_grad=True)
    unit(z).sum().backward()
    assert not unit(z).any() and not z.grad.any()
