"""On GPUs, deterministic mode: killed anywhere and resumed, a training ends with the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import commands
from tests.rank.alone import create, run
from tests.rank.digests import digest_of_training
from tests.rank.test_exact import EVERYTHING, OTHERS, PLAIN, POINTS
from tests.ranks.processes import train
from train_core.config import TrainConfig
from train_core.errors import NotFiniteError
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group, use_deterministic_algorithms
from train_core.rank.loop import Trainer
from train_core.storage.records.run_record import NEWEST_STEP_RULES
from train_core.storage.run_folder import RunFolder
from train_core.tools.provenance import fingerprint
from train_core.workloads.resnet import ResNet18

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.timeout(600),
]

ON_GPU = {"gpus_per_worker": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    **EVERYTHING,
    "noise": OTHERS["noise"],
    "channels-last": OTHERS["channels-last"],
}
# NCCL wants a GPU for each rank.
WORKERS = [count for count in (1, 2, 4) if count <= max(1, torch.cuda.device_count())]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The digest of the run that nobody touched, on one GPU, by its configuration's name."""

    @cache
    def digest(name: str) -> str:
        storage = str(tmp_path_factory.mktemp("undisturbed"))
        config = CONFIGS[name] | ON_GPU
        return str(train(storage, "run", attempt=1, workers=1, config=config)["digest"])

    return digest


@pytest.mark.parametrize("name", CONFIGS)
def test_two_runs_on_a_gpu_have_the_same_bits(
    name: str, undisturbed: Callable[[str], str], tmp_path: Path
) -> None:
    config = CONFIGS[name] | ON_GPU
    again = train(str(tmp_path), "run", attempt=1, workers=1, config=config)
    assert again["digest"] == undisturbed(name)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", EVERYTHING)
def test_a_run_that_is_killed_on_gpus_ends_with_the_same_bits(
    name: str, workers: int, point: str, undisturbed: Callable[[str], str], tmp_path: Path
) -> None:
    where, step, after = POINTS[point]
    config = CONFIGS[name] | ON_GPU
    storage = str(tmp_path)
    killed = {"point": where, "step": step, "after": after}
    train(storage, "run", attempt=1, workers=workers, config=config, **killed)
    done = train(storage, "run", attempt=2, workers=WORKERS[-1], config=config)
    assert (done["digest"], done["resumed_from"]) == (undisturbed(name), after)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_all_that_the_shipped_network_computes_has_the_same_bits_twice(
    precision: torch.dtype,
) -> None:
    use_deterministic_algorithms(TrainConfig(), torch.device("cuda"), NEWEST_STEP_RULES)
    device = torch.device("cuda")
    images = torch.randn(64, 1, 28, 28, device=device)
    labels = torch.randint(10, (64,), device=device)
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = ResNet18(in_channels=1, num_classes=10).to(device)
        with torch.autocast("cuda", precision, enabled=precision is not torch.float32):
            logits = model(images)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for first, second in zip(*found, strict=True):
        assert first is not None
        assert second is not None
        assert torch.equal(first, second)


@pytest.mark.parametrize("num_shards", [1, 2, 4])
def test_one_worker_with_any_number_of_shards_ends_with_the_same_bits_after_a_kill(
    num_shards: int, tmp_path: Path
) -> None:
    config = PLAIN | ON_GPU | {"num_shards": num_shards}
    undisturbed = train(str(tmp_path), "undisturbed", attempt=1, workers=1, config=config)
    where, step, after = POINTS["mid-epoch"]
    killed = {"point": where, "step": step, "after": after}
    train(str(tmp_path), "killed", attempt=1, workers=1, config=config, **killed)
    done = train(str(tmp_path), "killed", attempt=2, workers=1, config=config)
    assert (done["digest"], done["resumed_from"]) == (undisturbed["digest"], after)


def test_a_run_that_a_cpu_began_goes_on_on_a_gpu_and_its_surroundings_have_changed(
    tmp_path: Path,
) -> None:
    where, step, after = POINTS["mid-epoch"]
    killed = {"point": where, "step": step, "after": after}
    train(str(tmp_path), "run", attempt=1, workers=1, config=PLAIN, **killed)
    done = train(str(tmp_path), "run", attempt=2, workers=1, config=PLAIN | ON_GPU)
    assert done["resumed_from"] == after
    # The preflight warns of each difference.
    on_cpu, on_gpu = (fingerprint(TrainConfig(**config)) for config in (PLAIN, PLAIN | ON_GPU))
    different = {name for name in on_cpu if on_cpu[name] != on_gpu[name]}
    assert (different, on_gpu["device"]) == ({"device"}, torch.cuda.get_device_name())


def test_what_a_workload_keeps_comes_back_where_it_was(tmp_path: Path) -> None:
    given = {"workload": "tests.rank.tiny:KeepsBoth", "batch_size": 32, "epochs": 2}
    for name, cuts in (("whole", ()), ("cut", (3,))):
        folder = RunFolder(str(tmp_path), name)
        for attempt, max_steps in enumerate((*cuts, 0), start=1):
            run(folder, attempt, **given, **ON_GPU, max_steps=max_steps)
    whole, cut = (digest_of_training(RunFolder(str(tmp_path), name)) for name in ("whole", "cut"))
    assert whole == cut


def test_what_a_workload_kept_on_a_cpu_goes_on_on_a_gpu(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    given = {"workload": "tests.rank.tiny:Tiny", "batch_size": 32, "epochs": 2}
    run(folder, **given, max_steps=3)
    assert run(folder, 2, **given, **ON_GPU).step == 10


def lose_its_number(storage: str) -> None:
    """Train with a loss that is no number; the exit status is the step that is named."""
    config = TrainConfig(
        workload="tests.rank.tiny:DrawsClasses",
        batch_size=32,
        settings={"nan_from_step": 3},
        clip_norm=1.0,
        **ON_GPU,
    )
    folder = RunFolder(storage, "run")
    create(folder, config)
    try:
        Trainer(folder, with_monitor(config), 1, Group.current(uses_gpu=True)).run()
    except NotFiniteError as error:
        sys.exit(error.step)


def test_not_a_number_is_told_also_if_the_gpu_fails_by_it(tmp_path: Path) -> None:
    program = f"from {__name__} import lose_its_number; lose_its_number({str(tmp_path)!r})"
    done = commands.run([sys.executable, "-c", program])
    assert done.returncode == 4, done.stderr


def test_a_step_reads_no_tensor_of_the_gpu_but_by_events(tmp_path: Path) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, clip_norm=1.0, **ON_GPU)
    folder = RunFolder(str(tmp_path), "run")
    create(folder, config)
    trainer = Trainer(folder, with_monitor(config), 1, Group.current(uses_gpu=True))
    try:
        trainer.restore()
        for _ in range(4):
            trainer.step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        trainer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        trainer.close()


def test_a_snapshot_of_a_gpu_lies_in_pinned_memory(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, **ON_GPU)
    create(folder, config)
    trainer = Trainer(folder, with_monitor(config), 1, Group.current(uses_gpu=True))
    trainer.run()
    files = trainer.checkpointer._thread.snapshot.files
    assert files
    assert all(file.buffer.is_pinned() for file in files)
