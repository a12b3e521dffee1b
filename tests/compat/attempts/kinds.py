"""Training functions of several kinds, each of which reports a checkpoint an epoch and resumes."""

from __future__ import annotations

from dataclasses import dataclass

from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from tests.compat.functions.plain import save_and_resume

EPOCHS = 10
PAUSE_S = 0.3
NUM_WORKERS = 2


@dataclass(frozen=True)
class Kind:
    """A function as the command names it, and what its configuration and metrics are called."""

    title: str
    name: str
    metric: str = "loss"
    first_epoch: int = 0
    """Its metric `epoch` with its first report."""
    num_epochs: str = "num_epochs"
    is_factory: bool = False
    library: str = ""
    """What it needs beyond Ray and torch."""

    def __str__(self) -> str:
        return self.title


def factory() -> TorchTrainer:
    """A trainer that keeps all checkpoints, and ranks them by the loss."""
    return TorchTrainer(
        save_and_resume,
        train_loop_config={"num_epochs": EPOCHS, "pause_s": PAUSE_S},
        scaling_config=ScalingConfig(num_workers=NUM_WORKERS),
        run_config=RunConfig(
            checkpoint_config=CheckpointConfig(
                checkpoint_score_attribute="loss", checkpoint_score_order="min"
            )
        ),
    )


PLAIN = Kind("plain", "tests.compat.functions.plain:save_and_resume")
FACTORY = Kind("factory", "tests.compat.attempts.kinds:factory", is_factory=True)
SLOW_UPLOAD = Kind("slow upload", "tests.compat.functions.plain:uploads_slowly")
LIGHTNING = Kind(
    "lightning",
    "tests.compat.functions.lightning_functions:resume",
    metric="train_loss",
    num_epochs="max_epochs",
    library="lightning",
)
TRANSFORMERS = Kind(
    "transformers",
    "tests.compat.functions.transformers_functions:report_callback",
    metric="eval_loss",
    # It counts finished epochs.
    first_epoch=1,
    library="transformers",
)
ACCELERATE = Kind(
    "accelerate", "tests.compat.functions.accelerate_functions:save_model", library="accelerate"
)
DEEPSPEED = Kind(
    "deepspeed", "tests.compat.functions.deepspeed_functions:zero3", library="deepspeed"
)
KINDS = (PLAIN, FACTORY, LIGHTNING, TRANSFORMERS, ACCELERATE)
