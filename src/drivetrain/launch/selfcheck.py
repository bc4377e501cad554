"""The script of ``drivetrain test``: one training step, and collectives whose results are known."""

import sys
from typing import Any

import torch

from drivetrain import Accelerator

STEPS = 20  # at most: fp16 skips steps until it has found a scale that does not overflow


def main() -> None:
    """Print what is checked, and end with an exit code that says whether all was right."""
    accelerator = Accelerator()
    accelerator.print(f"{accelerator.num_processes} process(es) on {accelerator.device}, {accelerator.mixed_precision}")
    failed = [check.__name__ for check in (collectives, training) if not check(accelerator)]
    accelerator.wait_for_everyone()
    accelerator.end_training()
    if failed:
        sys.exit(f"wrong on process {accelerator.process_index}: {', '.join(failed)}")
    accelerator.print("The self-check has passed: this setup is ready.")


def collectives(accelerator: Accelerator) -> bool:
    """Whether gather, reduce and broadcast agree with what each process knows of the others."""
    size, rank = accelerator.num_processes, accelerator.process_index
    mine = torch.tensor([float(rank)], device=accelerator.device)
    numbers = list(range(size))
    gathered = accelerator.gather(mine).tolist()
    total = accelerator.reduce(mine, reduction="sum").item()
    return gathered == numbers and total == sum(numbers)


def training(accelerator: Accelerator) -> bool:
    """Whether a step changes the weights, to the same values on every process."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    inputs = torch.ones(2, 4, device=accelerator.device) * (accelerator.process_index + 1)
    for _ in range(STEPS):
        accelerator.backward(model(inputs).float().pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        if not accelerator.optimizer_step_was_skipped:
            break
    trained: Any = accelerator.unwrap_model(model)
    after = trained.weight.detach().flatten()
    same = accelerator.gather(after).reshape(-1, after.numel())
    return bool((same == same[0]).all()) and not torch.equal(after.cpu(), before.flatten())


if __name__ == "__main__":
    main()
