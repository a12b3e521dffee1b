"""What a rehearsal refuses, what it tells, and that it is silent where nothing is wrong."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.pytorch.case import CaseSettings, CaseWorkload
from tests.pytorch.engine import config_of
from tests.pytorch.layers import LAYERS
from tests.pytorch.table import SECTIONS
from tests.rehearsal import odd
from train_core import Settings, Workload
from train_core.config import TrainConfig
from train_core.errors import ConfigError, EvertrainError, NotFiniteError
from train_core.loading import load_workload
from train_core.rank.checkpoint.state import TrainingState, model_state
from train_core.rank.data.fitted import load_without_data
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rehearsal import rehearse as rehearsing
from train_core.rehearsal.check import rehearse_workload
from train_core.rehearsal.engine_training import EngineTraining
from train_core.rehearsal.rehearse import rehearse
from train_core.rehearsal.steps import Trial, try_resume, try_steps
from train_core.results import Rehearsal
from train_core.workload import indexed, load_split

SHIPPED = (
    "train_core.workloads.digits:Digits",
    "tumours:Tumours",
    "tumours_extended:AveragedTumours",
    "tumours_extended:AnchoredTumours",
)
CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def rehearsed(kind: type[Workload[Any]], **asked: Any) -> Rehearsal:
    given = {"workload": "tests.rehearsal.odd:Right", "batch_size": 32, "num_shards": 2}
    config = TrainConfig(**given | asked)
    workload = kind(Settings())
    train_set, validation_set = load_split(workload, "train"), indexed(workload, "validation")
    new = partial(kind, Settings())
    return rehearse(new, new, config, train_set, validation_set, CPU)


def found(kind: type[Workload[Any]], **asked: Any) -> list[tuple[str, bool]]:
    return [(one.name, one.is_refused) for one in rehearsed(kind, **asked).findings]


@pytest.mark.promise("rehearsal")
def test_a_workload_that_is_right_is_tried_in_all_and_nothing_is_said_of_it() -> None:
    said = rehearsed(odd.Right)
    assert said.tried == ["schedule", "gradients", "state", "predictions", "metric", "loss"]
    assert (said.findings, said.left_out) == ([], [])


@pytest.mark.promise("rehearsal")
@pytest.mark.parametrize(
    ("kind", "name", "is_refused", "words"),
    [
        (odd.WronglyMerged, "metric", True, "'total' (Averaged)"),
        (odd.LostState, "state", True, "Counting.calls"),
        (odd.Logits, "metric", False, "outputs.sigmoid(…)"),
        (odd.Batches, "metric", False, "depends on eval_batch_size"),
        (odd.InBatch, "loss", False, "num_shards"),
        (odd.NeedsTargets, "predictions", False, "KeyError: 'label'"),
        (odd.Leaks, "predictions", False, "(label) is not that of the row without them"),
        (odd.NoRowAlone, "predictions", False, "'score' of a row alone"),
        (odd.NotFinite, "predictions", False, "not finite"),
        (odd.TooLong, "predictions", False, "30 rows of 15 samples"),
        (odd.Short, "schedule", False, "the schedule raises ValueError"),
        (odd.NoRate, "schedule", False, "is nan"),
        (odd.NotRepeatable, "repeatable", False, "gradient/linear"),
        (odd.ShortSecond, "schedule", False, "before step 37 of"),
        (odd.Squeezed, "metric", False, "odd.py, line"),
        (odd.MeanOfMeans, "metric", False, "in batches of 6"),
        (odd.MovedByEvaluation, "state", True, "an evaluation changes '1.mean'"),
        (odd.KeepsRows, "state", True, "an evaluation changes '1.seen'"),
        (odd.Weighs, "loss", False, "let weight() count that"),
        (odd.ListOfNorms, "state", True, "optimizer.norms"),
        (odd.DrawsInEvaluation, "predictions", False, "or is drawn at random"),
        (odd.NoColumn, "predictions", False, "'list', 'mean' of predictions() is no tensor"),
        (odd.Unnamed, "predictions", False, "give the class of each sample as `prediction`"),
        (odd.Reserved, "predictions", False, "a column 'id', which files of predictions"),
        (odd.FewClasses, "predictions", False, "With 1 class_names"),
        (odd.SoftTargets, "predictions", False, "With 2 class_names"),
        (odd.NoPredictions, "predictions", False, "predictions() is not written"),
    ],
)
def test_what_would_go_wrong_is_named(
    kind: type[Workload[Any]], name: str, is_refused: bool, words: str
) -> None:
    findings = rehearsed(kind, epochs=40).findings
    assert [(one.name, one.is_refused) for one in findings] == [(name, is_refused)]
    assert words in findings[0].message


@pytest.mark.promise("rehearsal")
@pytest.mark.parametrize(
    ("kind", "is_refused", "words"),
    [
        ("ReadsFiles", True, "files('words') is called where a model predicts"),
        ("ModelReadsFiles", True, "files('words') is called where a model predicts"),
        ("KeptByDataset", True, "'prediction' of the same rows is another one"),
        ("KeptByTraining", True, "'score' of the same rows is another one"),
        ("NeededOfDataset", False, "a served model cannot predict: KeyError: 'scale'"),
    ],
)
def test_a_model_that_would_be_another_one_where_it_is_served_is_told(
    kind: str, is_refused: bool, words: str
) -> None:
    (found,) = checked(kind).findings
    assert (found.name, found.is_refused) == ("predictions", is_refused)
    assert words in found.message


@pytest.mark.parametrize("kind", ["Fits", "FittedMetric"])
def test_what_is_fitted_is_served(kind: str) -> None:
    assert checked(kind).findings == []


@pytest.mark.promise("rehearsal")
@pytest.mark.parametrize("num_shards", [2, 3, 4])
def test_a_metric_that_merges_two_shards_only_is_refused_where_there_are_more(
    num_shards: int,
) -> None:
    expected = [("metric", True)] if num_shards > 2 else []
    assert found(odd.Ranged, num_shards=num_shards) == expected


def test_a_model_that_draws_is_not_refused_for_what_it_draws() -> None:
    assert not any(one.is_refused for one in checked("DrawsInEvaluation").findings)


def test_a_monitor_that_is_not_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match="'validation/beauty' is not measured: Fits gives"):
        checked("Fits", monitor="validation/beauty")


def checked(kind: str, **asked: Any) -> Rehearsal:
    workload = f"tests.rehearsal.odd:{kind}"
    config = TrainConfig(workload=workload, batch_size=32, **asked)
    return rehearse_workload(with_monitor(config))


@pytest.mark.promise("rehearsal")
def test_a_metric_with_states_of_several_kinds_is_merged_or_refused() -> None:
    assert found(odd.SignalToNoise) in ([], [("metric", True)])


@pytest.mark.promise("rehearsal")
def test_what_a_workloads_code_raises_is_raised() -> None:
    with pytest.raises(KeyError, match="weights"):
        rehearsed(odd.Broken)


def test_outputs_that_cannot_be_cut_are_left_out_and_not_refused() -> None:
    said = rehearsed(odd.InDataclass)
    assert said.findings == []
    (line,) = said.left_out
    assert line.startswith("loss: of 15 rows the workload raises ")


@pytest.mark.parametrize(
    "kind",
    [
        odd.ListedRates,
        odd.Normal,
        odd.Called,
        odd.OneRow,
        odd.AsManyWeights,
        odd.RatioOfMeans,
        odd.Correlated,
        odd.Delegated,
        odd.GrowingCache,
    ],
)
def test_odd_ones_that_are_right_are_tried_in_all(kind: type[Workload[Any]]) -> None:
    said = rehearsed(kind)
    assert said.tried == ["schedule", "gradients", "state", "predictions", "metric", "loss"]
    assert (said.findings, said.left_out) == ([], [])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (odd.Empty, "the validation split is empty"),
        (odd.Lazy, "lazy layer"),
        (odd.SharedBuffer, "buffer 'first' shares memory with parameter '0.weight'"),
        (odd.MeanOfLists, "metric 'median' .* its state 'kept' is a list"),
        (odd.KeepsTexts, "state 'kept' of metric Texts holds a str"),
        (odd.NoStateOfSchedule, "give one schedule with step"),
    ],
)
def test_what_a_run_refuses_is_refused(kind: type[Workload[Any]], words: str) -> None:
    with pytest.raises(EvertrainError, match=words):
        rehearsed(kind)


def test_what_needs_the_workers_is_left_out() -> None:
    said = rehearsed(odd.OnlyInWorkers)
    assert said.findings == []
    assert said.left_out[0].startswith("the rest: here the workload raises ValueError: Default")
    assert said.is_cut_short


def test_after_a_fault_what_it_keeps_from_being_tried_is_said() -> None:
    said = rehearsed(odd.NotRepeatable)
    assert [line.partition(":")[0] for line in said.left_out] == [
        "gradients on 2 shards",
        "state",
        "metric, loss, predictions",
    ]


def test_what_model_leaves_in_the_workload_is_there_when_it_is_measured() -> None:
    assert found(odd.KeepsModel) == []


def test_what_the_first_validation_would_raise_is_raised() -> None:
    with pytest.raises(KeyError, match="answers"):
        rehearsed(odd.BrokenInEvaluation)
    said = rehearsed(odd.HungryInEvaluation)
    assert said.findings == []
    (line,) = said.left_out
    assert line.startswith("metric: of 15 rows the workload raises ValueError: too few rows")


def test_a_model_that_refuses_few_samples_is_tried_with_as_many_as_in_the_training() -> None:
    assert found(odd.Hungry, batch_size=32) == []


def test_a_first_loss_that_is_no_number_is_refused() -> None:
    with pytest.raises(NotFiniteError, match="the loss became nan at step 1"):
        rehearsed(odd.WithoutLabel)


def test_a_loss_that_is_a_number_for_as_many_samples_as_in_the_training_is_none_to_refuse() -> None:
    said = rehearsed(odd.OfManySamples, batch_size=32)
    assert [one for one in said.findings if one.is_refused] == []


def test_what_is_not_tried_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsing, "_MOST_PARAMETERS", 10)
    said = rehearsed(odd.Right)
    assert said.left_out == ["all: the model has 81 parameters"]
    monkeypatch.undo()
    monkeypatch.setattr(rehearsing, "_MOST_S", -1.0)
    said = rehearsed(odd.Right)
    assert said.tried == ["schedule"]
    assert len(said.left_out) == 4


def test_generators_threads_and_switches_are_put_back() -> None:
    torch.set_num_threads(2)
    try:
        state = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        rehearsed(odd.Right)
        assert torch.equal(torch.get_rng_state(), state[0])
        assert np.random.get_state()[1].tolist() == state[1]  # noqa: NPY002
        assert random.getstate() == state[2]
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(1)


@pytest.mark.promise("rehearsal")
@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_refused_of_what_is_shipped_and_hardly_anything_said(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    workload = load_workload(name, {})
    config = TrainConfig(workload=name, num_shards=2, batch_size=32)
    said = rehearse(
        partial(load_workload, name, {}),
        partial(load_without_data, config, None),
        config,
        load_split(workload, "train"),
        indexed(workload, "validation"),
        CPU,
    )
    assert [one for one in said.findings if one.is_refused] == []
    assert len(said.findings) <= 1


def of_the_table(name: str) -> Rehearsal:
    config = config_of(name, 2)
    workload = CaseWorkload(CaseSettings(name=name))
    new = partial(CaseWorkload, CaseSettings(name=name))
    return rehearse(
        new,
        new,
        config,
        load_split(workload, "train"),
        indexed(workload, "validation"),
        CPU,
    )


@pytest.mark.promise("rehearsal")
@pytest.mark.parametrize("name", [f"Layers: {name}" for name in LAYERS])
def test_no_layer_is_refused_that_is_exact(name: str) -> None:
    case = SECTIONS["Layers"][name.removeprefix("Layers: ")]
    if case.refused:
        with pytest.raises(ConfigError, match=case.refused):
            of_the_table(name)
        return
    findings = of_the_table(name).findings
    assert [one for one in findings if one.is_refused] == []
    assert len(findings) <= 1


class OldRules(EngineTraining):
    """The engine by the rules of runs that began before: a missing gradient is one of zeros."""

    def __init__(self, workload: Workload[Any], config: TrainConfig, *rest: Any) -> None:
        super().__init__(workload, config, *rest)
        self.learner.reducer._none_is_zero = True
        for bucket in self.learner.reducer._buckets:
            bucket._none_is_zero = True


class TorchsOwnRestore(EngineTraining):
    """The engine with the optimizer's state restored by torch, which casts it."""

    def __init__(self, workload: Workload[Any], *rest: Any) -> None:
        super().__init__(workload, *rest)
        self.state = TrainingState()
        model, optimizer = self.learner.model, self.learner.optimizer
        self.state.add("model", partial(model_state, model), model.load_state_dict)
        self.state.add("optimizer", optimizer.state_dict, optimizer.load_state_dict)


class StridesOfParameters(EngineTraining):
    """The engine with gradients in the strides of their parameters, which may have gaps."""

    def __init__(self, workload: Workload[Any], *rest: Any) -> None:
        super().__init__(workload, *rest)
        for bucket in self.learner.reducer._buckets:
            bucket._strides = [parameter.stride() for parameter in bucket.parameters]


class PlainDicts(EngineTraining):
    """The engine with a schedule's containers saved as plain ones."""

    def __init__(self, workload: Workload[Any], *rest: Any) -> None:
        super().__init__(workload, *rest)
        schedule = self.learner.schedule
        assert schedule is not None

        def plain() -> dict[str, Any]:
            state = schedule.state_dict()
            parts = [
                {name: dict(v) if type(v) is Counter else v for name, v in part.items()}
                for part in state["_schedulers"]
            ]
            return state | {"_schedulers": parts}

        self.state = TrainingState()
        model, optimizer = self.learner.model, self.learner.optimizer
        self.state.add("model", partial(model_state, model), model.load_state_dict)
        self.state.add("optimizer", optimizer.state_dict, optimizer.load_state_dict)
        self.state.add("schedule", plain, schedule.load_state_dict)


class TrialOfOther(Trial):
    """A trial of an engine of which one mend is switched off."""

    kind: type[EngineTraining]

    def engine(self) -> EngineTraining:
        workload, total = self.new_workload(), self.total_steps
        return self.kind(workload, self.config, self.dataset, total, self.device)


class TwoHeads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(odd.WIDTH, 1), torch.nn.Linear(odd.WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


UnusedHead = odd.modelled(TwoHeads)


class Master(torch.optim.SGD):
    """Keeps fp32 weights beside those of bf16."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("master", p.detach().float().clone())
                state["master"].sub_(p.grad.float(), alpha=group["lr"])
                p.data.copy_(state["master"])


@odd.modelled
def Gapped() -> torch.nn.Module:  # noqa: N802 (a class)
    """A weight that is a part of a larger tensor."""
    made = torch.nn.Linear(odd.WIDTH, 1)
    made.weight = torch.nn.Parameter(torch.randn(1, 4 * odd.WIDTH)[:, ::4])
    return made


@odd.scheduled
def Milestones(optimizer: torch.optim.Optimizer, total_steps: int) -> Any:  # noqa: N802 (a class)
    """Its schedule keeps a Counter."""
    first = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
    second = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [first, second], [3])


class Decaying(torch.nn.Module):
    """A buffer that no checkpoint of torch has follows the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(odd.WIDTH, 1)
        self.register_buffer("seen", torch.zeros(odd.WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.mul_(0.9).add_(x.mean(0))
        out: Tensor = self.linear(x - self.seen)
        return out


Unsaved = odd.modelled(Decaying)


class Bf16(odd.Right):
    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(odd.WIDTH, 1).bfloat16()

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return Master(model.parameters(), lr=0.01)

    def forward(self, model: torch.nn.Module, batch: Any) -> Any:
        return model(batch["inputs"].bfloat16()).float()


def trial(workload: type[Workload[Any]], kind: type[EngineTraining]) -> TrialOfOther:
    config = TrainConfig(workload="tests.rehearsal.odd:Right", batch_size=8, num_shards=2)
    one = workload(Settings())
    made = TrialOfOther(lambda: workload(Settings()), config, indexed(one, "train"), 100, CPU)
    object.__setattr__(made, "kind", kind)
    return made


def found_in(workload: type[Workload[Any]], kind: type[EngineTraining]) -> list[tuple[str, bool]]:
    """What a trial of that engine finds; an error of torch's own is one, too."""
    tried = trial(workload, kind)
    try:
        engine, findings = try_steps(tried)
        findings += try_resume(tried, engine) if not findings else []
    except (AttributeError, RuntimeError) as error:
        return [(type(error).__name__, True)]
    return [(one.name, one.is_refused) for one in findings]


@pytest.mark.promise("rehearsal")
@pytest.mark.parametrize(
    ("workload", "without_the_mend", "expected"),
    [
        (UnusedHead, OldRules, "gradients"),
        (Gapped, StridesOfParameters, "gradients"),
        (Bf16, TorchsOwnRestore, "state"),
        (Milestones, PlainDicts, "AttributeError"),
        (Unsaved, TorchsOwnRestore, "state"),
    ],
)
def test_what_was_mended_in_the_engine_would_be_seen(
    workload: type[Workload[Any]], without_the_mend: type[EngineTraining], expected: str
) -> None:
    assert found_in(workload, EngineTraining) == []
    assert found_in(workload, without_the_mend) == [(expected, True)]


def test_a_wrong_gradient_is_named() -> None:
    (finding,) = try_steps(trial(UnusedHead, OldRules))[1]
    assert "unused" in finding.message


class ScheduledMaster(Bf16):
    def schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)


def test_the_rates_are_looked_at_without_a_step_of_the_optimizer() -> None:
    # It cannot step without gradients.
    assert found(ScheduledMaster, epochs=20) == []
