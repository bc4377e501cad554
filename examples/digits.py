"""Train a small network on scikit-learn's hand-written digits: real data, a plain loop, any number of processes.

    python examples/digits.py
    drivetrain launch --cpu --num_processes 2 examples/digits.py --mixed_precision bf16

--batch_size counts the samples of one optimizer step over all processes, so the same command gives the same training
on one process and on several.
"""

import argparse
import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain import Accelerator


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=64, help="samples in one optimizer step, over all processes")
    parser.add_argument("--accumulation", type=int, default=2, help="batches that make up one optimizer step")
    parser.add_argument("--lr", type=float, default=1e-2, help="highest learning rate of the schedule")
    parser.add_argument("--mixed_precision", choices=["no", "bf16", "fp16"], help="default: what the launcher says")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("digits_output"))
    return parser.parse_args()


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """1408 digits to train on and 389 to test on, as images [1, 8, 8] in 0..1 and labels 0..9."""
    pixels, classes = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(classes)
    train, test = train_test_split(range(len(labels)), train_size=1408, random_state=seed, stratify=labels)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def build_model() -> nn.Module:
    # Smooth layers: at the kink of a ReLU or a max pooling the last bit of a sum decides, and equal runs drift apart.
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def train(arguments: argparse.Namespace) -> None:
    accelerator = Accelerator(
        mixed_precision=arguments.mixed_precision,
        gradient_accumulation_steps=arguments.accumulation,
        log_with="jsonl",
        project_dir=arguments.output_dir,
    )
    parts = accelerator.num_processes * arguments.accumulation
    if arguments.batch_size % parts:
        raise SystemExit(
            f"--batch_size {arguments.batch_size} must be a multiple of processes x accumulation = {parts}"
        )
    per_process = arguments.batch_size // parts
    accelerator.init_trackers("digits", config=vars(arguments))

    torch.manual_seed(arguments.seed)  # the same first weights in every process
    train_set, test_set = load_data(arguments.seed)
    order = torch.Generator().manual_seed(arguments.seed)  # and the same order of the samples
    train_loader = DataLoader(train_set, batch_size=per_process, shuffle=True, generator=order, drop_last=True)
    test_loader = DataLoader(test_set, batch_size=100)

    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    steps = arguments.epochs * (len(train_set) // arguments.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=arguments.lr, total_steps=steps)
    model, optimizer, schedule, train_loader, test_loader = accelerator.prepare(
        model, optimizer, schedule, train_loader, test_loader
    )

    curve: list[float] = []  # of each optimizer step: the mean loss over all of its samples, on all processes
    window = torch.zeros((), device=accelerator.device)
    accuracy = 0.0
    for epoch in range(arguments.epochs):
        model.train()
        for images, labels in train_loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                window += loss.detach() / arguments.accumulation
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                curve.append(accelerator.reduce(window, reduction="mean").item())
                accelerator.log({"loss": curve[-1], "lr": schedule.get_last_lr()[0]}, step=len(curve))
                window.zero_()
        accuracy = evaluate(accelerator, model, test_loader)
        accelerator.log({"accuracy": accuracy}, step=len(curve))
        accelerator.print(f"epoch {epoch + 1:2d}  loss {curve[-1]:.4f}  test accuracy {accuracy:.4f}")

    accelerator.wait_for_everyone()
    accelerator.save_model(model, str(arguments.output_dir / "model"))
    if accelerator.is_main_process:
        result = {"processes": accelerator.num_processes, "accuracy": accuracy, "loss": curve}
        (arguments.output_dir / "result.json").write_text(json.dumps(result))
    accelerator.end_training()


def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """Share of the test set that the model labels right, the same number on every process."""
    model.eval()
    right = []
    for images, labels in loader:
        with torch.no_grad():
            guess = model(images).argmax(dim=1)
        # The last batch is padded so that every process has one; gather_for_metrics drops the padding again.
        guess, labels = accelerator.gather_for_metrics((guess, labels))
        right.append(guess == labels)
    return torch.cat(right).float().mean().item()


if __name__ == "__main__":
    train(parse_arguments())
