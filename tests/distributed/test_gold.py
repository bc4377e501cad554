"""The gold test: N ranks with the same effective batch train the weights of one plain PyTorch process (float64)."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ranks import run_ranks

STEPS, GLOBAL_BATCH = 50, 8
CASES = [
    {"optimizer": optimizer, "clip": clip, "window": window, "even": even, "shuffle": shuffle}
    for optimizer, clip, window, even, shuffle in itertools.product(
        ("sgd", "adamw"), (None, 0.5), (1, 2), (True, False), (False, True)
    )
]


def _data(even: bool) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    n = 48 if even else 37
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _plain(case, orders) -> tuple[list[float], list[float]]:
    """Plain PyTorch: every window is one batch; its loss is the mean over the window's samples."""
    model, data = _model(), _data(case["even"])
    optimizer = _optimizer(case["optimizer"], model)
    losses = []
    while len(losses) < STEPS:
        order = orders.pop(0) if case["shuffle"] else list(range(len(data)))
        size = GLOBAL_BATCH * case["window"]
        for start in range(0, len(order), size):
            if len(losses) == STEPS:
                break
            x, y = data[order[start : start + size]]
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            if case["clip"]:
                nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def _ours(case):
    """The same by the Accelerator: each rank reads its share, micro-batch by micro-batch."""
    from drivetrain import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=case["window"],
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3),
    )
    model, data = _model(), _data(case["even"])
    loader = DataLoader(data, batch_size=GLOBAL_BATCH // accelerator.num_processes, shuffle=case["shuffle"])
    model, optimizer, loader = accelerator.prepare(model, _optimizer(case["optimizer"], model), loader)
    losses, total, count = [], 0.0, 0.0
    while len(losses) < STEPS:
        for x, y in loader:
            if len(losses) == STEPS:
                break
            with accelerator.accumulate(model):
                if case["even"]:
                    loss = nn.functional.mse_loss(model(x), y)
                    accelerator.backward(loss)
                    own = torch.tensor([loss.item() * len(x), len(x)], dtype=torch.float64)
                else:
                    n = accelerator.num_valid
                    loss = nn.functional.mse_loss(model(x)[:n], y[:n], reduction="sum")
                    accelerator.backward(loss, weight=n)
                    own = torch.tensor([loss.item(), n], dtype=torch.float64)
                sums = accelerator.reduce(own).tolist()
                total, count = total + sums[0], count + sums[1]
                if accelerator.sync_gradients and case["clip"]:
                    accelerator.clip_grad_norm_(model.parameters(), case["clip"])
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    losses.append(total / count)
                    total, count = 0.0, 0.0
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def _order_of_epochs(epochs, n):
    """The order in which one process reads a shuffled loader of ``n`` samples."""
    from drivetrain import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3)
    )
    loader = accelerator.prepare(DataLoader(torch.arange(n), batch_size=GLOBAL_BATCH, shuffle=True))
    return [[i for batch in loader for i in batch.tolist()] for _ in range(epochs)]


def _all_of_ours(cases):
    return [_ours(case) for case in cases]


@pytest.fixture(scope="module")
def plain():
    results = []
    for case in CASES:
        orders = run_ranks(_order_of_epochs, n=1, args=(30, len(_data(case["even"]))))[0] if case["shuffle"] else []
        results.append(_plain(case, orders))
    return results


@pytest.mark.limit(300)
@pytest.mark.parametrize("world", [1, 2])
def test_ranks_train_the_weights_of_one_plain_process(world, plain):
    for rank in run_ranks(_all_of_ours, n=world, timeout=240, args=(CASES,)):
        for case, (losses, weights), (expected_losses, expected_weights) in zip(CASES, rank, plain, strict=True):
            assert losses == pytest.approx(expected_losses, rel=1e-12, abs=1e-14), case
            assert weights == pytest.approx(expected_weights, rel=1e-12, abs=1e-14), case
