"""Train a tiny BERT with transformers' Trainer in several ways, on as many processes as it is started with.

    accelerate launch --cpu --num_processes 2 trainer_flows.py RESULTS.json FOLDER

Each flow takes the same samples to one optimizer step, whatever the number of processes. Process 0 writes the results.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from accelerate import PartialState

ROWS_A_STEP = 8
VOCABULARY = 48
LENGTH = 12


def samples(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Sequences that count upwards from a random start, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, VOCABULARY, (count,), generator=generator)
    steps = torch.randint(1, 4, (count,), generator=generator)
    rows = (starts[:, None] + steps[:, None] * torch.arange(LENGTH)) % VOCABULARY
    return [{"input_ids": row, "labels": row.clone()} for row in rows]


def model(fits: int | None = None, tried: list[int] | None = None) -> BertLMHeadModel:
    """Random weights, the same in every process and every flow. It runs out of memory with more than `fits` rows."""
    set_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, is_decoder=True,
    )  # fmt: skip
    out = BertLMHeadModel(config)

    def allocate(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        rows = len(kwargs["input_ids"])
        if fits is not None and tried is not None and module.training:
            tried.append(rows)
            if rows > fits:
                raise RuntimeError("CUDA out of memory.")

    out.register_forward_pre_hook(allocate, with_kwargs=True)
    return out


def trained(
    folder: str,
    *,
    fits: int | None = None,
    callbacks: list[TrainerCallback] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train, evaluate and predict; what came of it."""
    arguments = TrainingArguments(
        **{
            "output_dir": folder, "report_to": "none", "disable_tqdm": True, "logging_steps": 1, "max_steps": 8,
            "learning_rate": 1e-2, "save_strategy": "no", "seed": 0, "ddp_find_unused_parameters": False,
            "per_device_eval_batch_size": 2, **options,
        }
    )  # fmt: skip
    tried: list[int] = []
    trainer = Trainer(
        model=model(fits, tried),
        args=arguments,
        train_dataset=samples(64, 1),  # type: ignore[arg-type]
        eval_dataset=samples(16, 2),  # type: ignore[arg-type]
        callbacks=callbacks,
    )
    trainer.train()
    history = trainer.state.log_history
    predictions = torch.as_tensor(trainer.predict(samples(13, 3)).predictions)  # type: ignore[arg-type]
    return {
        "processes": trainer.accelerator.num_processes,
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "norms": [entry["grad_norm"] for entry in history if "grad_norm" in entry],
        "eval_loss": trainer.evaluate()["eval_loss"],
        "predictions": predictions.float().mean(dim=(1, 2)).tolist(),
        "best_step": trainer.state.best_global_step,
        "batch_size": trainer._train_batch_size,
        "tried": tried,
    }


def flows(folder: str, processes: int) -> dict[str, dict]:
    """Every flow by name, each with `ROWS_A_STEP` samples a step over all processes."""
    rows = ROWS_A_STEP // processes
    whole: dict[str, Any] = {"per_device_train_batch_size": rows}
    return {
        "plain": trained(folder, **whole),
        "accumulation": trained(
            folder, per_device_train_batch_size=rows // 2, gradient_accumulation_steps=2, max_steps=10
        ),  # 8 steps an epoch
        "short_window": trained(folder, **whole, gradient_accumulation_steps=3, max_steps=6),
        "bf16": trained(folder, **whole, bf16=True, use_cpu=True),
        "smoothing": trained(folder, **whole, label_smoothing_factor=0.1),
        "evaluation": trained(
            folder, **whole, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
            load_best_model_at_end=True, metric_for_best_model="eval_loss", save_total_limit=1,
            callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
        ),  # fmt: skip
        "finds_batch_size": trained(folder, per_device_train_batch_size=8, auto_find_batch_size=True, fits=4),
        "four_rows": trained(folder, per_device_train_batch_size=4),
    }  # fmt: skip


def main() -> None:
    """Run the flows and write their results."""
    results, folder = sys.argv[1:]
    out = flows(folder, PartialState().num_processes)
    if PartialState().is_main_process:
        with open(results, "w") as file:
            json.dump(out, file)


if __name__ == "__main__":
    main()
