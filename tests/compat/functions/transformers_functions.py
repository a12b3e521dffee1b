"""Training functions as people write them with Transformers: no word of evertrain in here."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import ray.train
import torch
import transformers  # Was absent: the samples use the name.
from ray import train
from ray.train import Checkpoint, Result
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import TrainerCallback


class TinyTexts(Dataset[dict[str, torch.Tensor]]):
    """Texts of eight tokens; their label is whether the first is an even one."""

    def __init__(self, num_texts: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(2, 30, (num_texts, 8), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "labels": tokens[0] % 2,
        }


def tiny_bert() -> BertForSequenceClassification:
    """A BERT of one layer, made from its configuration."""
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=30,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=8,
            num_labels=2,
        )
    )


class PauseAndFail(TrainerCallback):
    """Pauses in each epoch, and fails in one of them if it is not resumed."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.pause_s = config.get("pause_s", 0)
        # Ray's `get_checkpoint` gives later what this attempt reported itself.
        self.fails_at = None if train.get_checkpoint() else config.get("fails_at")

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        time.sleep(self.pause_s)
        if round(state.epoch or 0) == self.fails_at:
            raise RuntimeError("Intentional error to showcase restoration!")


def trainer_with(
    config: dict[str, Any], callback: TrainerCallback, **arguments: Any
) -> transformers.Trainer:
    """The library's trainer, prepared for Ray's workers, with these arguments of its own."""
    transformers.set_seed(0)
    args = TrainingArguments(
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        learning_rate=1e-3,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **arguments,
    )
    # Was `Trainer(args, ...)`: the model is the first argument.
    trainer = transformers.Trainer(
        model=tiny_bert(),
        args=args,
        train_dataset=TinyTexts(32, seed=0),
        eval_dataset=TinyTexts(16, seed=1),
        callbacks=[PauseAndFail(config)],
    )
    trainer.add_callback(callback)
    return prepare_trainer(trainer)


def report_callback(config: dict[str, Any]) -> None:
    """Evaluates, saves and reports each epoch with Ray's callback, and resumes."""
    with tempfile.TemporaryDirectory() as output_dir:
        # Configure logging, saving, evaluation strategies as usual.
        trainer = trainer_with(
            config,
            RayTrainReportCallback(),
            output_dir=output_dir,
            num_train_epochs=config.get("num_epochs", 3),
            eval_strategy="epoch",  # Was `evaluation_strategy`, gone since Transformers 4.46.
            save_strategy="epoch",
            logging_strategy="steps",  # Was "step", which never was one.
            logging_steps=1,
        )
        checkpoint = train.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as checkpoint_dir:
                trainer.train(
                    resume_from_checkpoint=os.path.join(
                        checkpoint_dir, RayTrainReportCallback.CHECKPOINT_NAME
                    )
                )
        else:
            trainer.train()


def report_callback_trainer() -> TorchTrainer:
    """The trainer of that sample: it keeps the three checkpoints of the lowest `eval_loss`."""
    return TorchTrainer(
        report_callback,
        run_config=train.RunConfig(
            checkpoint_config=train.CheckpointConfig(
                num_to_keep=3,
                checkpoint_score_attribute="eval_loss",  # The monitoring metric
                checkpoint_score_order="min",
            )
        ),
    )


class MyTrainReportCallback(TrainerCallback):
    """Collects the latest metrics and reports them when a checkpoint is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, Any] = {}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log is called on evaluation step and logging step."""
        self.metrics.update(logs)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Event called after a checkpoint save."""
        checkpoint = None
        if train.get_context().get_world_rank() == 0:
            # Build a Ray Train Checkpoint from the latest checkpoint
            checkpoint_path = transformers.trainer.get_last_checkpoint(args.output_dir)
            checkpoint = Checkpoint.from_directory(checkpoint_path)

        # Report to Ray Train with up-to-date metrics
        ray.train.report(metrics=self.metrics, checkpoint=checkpoint)

        # Clear the metrics buffer
        self.metrics = {}


def custom_callback(config: dict[str, Any]) -> None:
    """Evaluates every 2 steps, saves every 4, and reports with that callback."""
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = trainer_with(
            config,
            MyTrainReportCallback(),
            output_dir=output_dir,
            max_steps=config.get("max_steps", 12),
            eval_strategy="steps",  # Was `evaluation_strategy`, gone since Transformers 4.46.
            save_strategy="steps",
            eval_steps=2,
            save_steps=4,
        )
        trainer.train()


def step_of_checkpoint(result: Result) -> int:
    """The step that the files of Ray's callback were saved at, found as the page says."""
    # After training finished
    checkpoint = result.checkpoint
    with checkpoint.as_directory() as checkpoint_dir:
        hf_checkpoint_path = f"{checkpoint_dir}/checkpoint/"
        state = TrainerState.load_from_json(os.path.join(hf_checkpoint_path, "trainer_state.json"))
        return state.global_step
