"""The flat form of a configuration, which run.json, the flow and the command line have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertrain_flows.parameters import RetrainParameters
from train_core.config import TrainConfig
from train_core.policy.champion.gate_options import GateOptions
from train_core.results import Decision
from train_core.storage.records.amendments import Amendment
from train_core.storage.records.run_record import RunRecord

TESTS = Path(__file__).parents[1]
RECORDS = sorted((TESTS / "earlier_versions").rglob("run.json"))
ASKED = sorted((TESTS / "earlier_versions").rglob("asked/*.json"))
DECISIONS = sorted((TESTS / "earlier_versions").rglob("decisions/*/v*.json"))

FIELDS = [
    "workload",
    "settings",
    "accept",
    "rehearse_on",
    "train_fn",
    "trainer",
    "train_loop_config",
    "max_failures",
    "predictor",
    "trust_pickle",
    "epochs",
    "max_steps",
    "max_duration_s",
    "init_from",
    "init_from_optimizer",
    "init_from_allow",
    "batch_size",
    "accumulation_steps",
    "drop_last",
    "seed",
    "clip_norm",
    "strategy",
    "precision",
    "channels_last",
    "compile",
    "eval_batch_size",
    "data_workers",
    "monitor",
    "monitor_order",
    "early_stopping_patience",
    "early_stopping_min_delta",
    "checkpoint_every_epochs",
    "checkpoint_every_steps",
    "checkpoint_every_s",
    "checkpoint_backpressure",
    "hang_timeout_s",
    "grace_s",
    "max_unsaved_s",
    "keep_last",
    "keep_best",
    "keep_every_steps",
    "keep_newer_than_s",
    "num_workers",
    "min_workers",
    "num_shards",
    "cpus_per_worker",
    "gpus_per_worker",
    "spares",
    "deterministic",
    "threads_per_worker",
    "placement_strategy",
    "ray_address",
    "runtime_env",
    "strict",
]
GATE = [
    "gate",
    "registered_model",
    "gate_metric",
    "gate_order",
    "min_improvement",
    "gate_confidence",
    "gate_minimum",
    "max_recall_drop",
    "max_latency_ratio",
    "max_size_ratio",
    "on_changed_data",
    "require_approval",
]


def test_the_flat_form_has_these_names_in_this_order() -> None:
    assert list(TrainConfig().model_dump()) == FIELDS
    assert list(GateOptions().model_dump()) == GATE
    assert list(RetrainParameters.model_fields)[: len(FIELDS + GATE)] == FIELDS + GATE


SECONDS = st.floats(0, 1e6)
COMMON: dict[str, st.SearchStrategy[Any]] = {
    "keep_last": st.integers(1, 9),
    "keep_best": st.integers(1, 9),
    "keep_every_steps": st.integers(0, 9),
    "keep_newer_than_s": SECONDS,
    "monitor": st.sampled_from(["", "loss", "validation/accuracy"]),
    "monitor_order": st.sampled_from(["", "max", "min"]),
    "grace_s": SECONDS,
    "num_workers": st.integers(1, 4),
    "cpus_per_worker": st.floats(0.1, 8),
    "gpus_per_worker": st.none() | st.floats(0, 4),
    "runtime_env": st.sampled_from([{}, {"pip": ["x"]}, {"env_vars": {"A": "b"}}]),
    "strict": st.booleans(),
}
OF_WORKLOADS: dict[str, st.SearchStrategy[Any]] = {
    "workload": st.sampled_from(["a.b:C", "train_core.workloads.digits:Digits"]),
    "settings": st.dictionaries(st.text(max_size=5), st.integers() | st.text(), max_size=3),
    "accept": st.lists(st.sampled_from(["loss", "metric", "everything"]), max_size=2),
    "epochs": st.integers(1, 99),
    "max_steps": st.integers(0, 99),
    "max_duration_s": SECONDS,
    "batch_size": st.integers(64, 512),
    "accumulation_steps": st.integers(1, 4),
    "drop_last": st.booleans(),
    "seed": st.integers(0, 2**63 - 1),
    "early_stopping_patience": st.integers(0, 9),
    "checkpoint_every_steps": st.integers(0, 99),
    "checkpoint_every_s": SECONDS,
    "checkpoint_backpressure": st.sampled_from(["skip", "wait"]),
    "num_shards": st.sampled_from([0, 4, 8]),
}
OF_FUNCTIONS: dict[str, st.SearchStrategy[Any]] = {
    "train_loop_config": st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    "max_failures": st.integers(-1, 9),
}
FUNCTION = {"train_fn": st.just("a.b:train")}
PREDICTOR = {"workload": st.just("a.b:C"), "predictor": st.just("a.b:predict")}
CONFIGS = (
    st.fixed_dictionaries({}, optional=COMMON | OF_WORKLOADS)
    | st.fixed_dictionaries(FUNCTION, optional=COMMON | OF_FUNCTIONS)
    | st.fixed_dictionaries(FUNCTION | PREDICTOR, optional=COMMON | OF_FUNCTIONS)
)


@given(CONFIGS)
def test_a_configuration_is_read_as_it_was_written(asked: dict[str, Any]) -> None:
    config = TrainConfig(**asked)
    written = config.model_dump_json()
    assert list(json.loads(written)) == FIELDS
    read = TrainConfig.model_validate_json(written)
    assert read == config
    assert type(read.trainable) is type(config.trainable)
    assert read.trainable == config.trainable
    assert read.model_dump_json() == written
    taken = RetrainParameters(**asked).train_config()
    assert taken == config
    assert taken.model_dump_json() == written


@pytest.mark.parametrize("path", RECORDS + ASKED, ids=lambda one: str(one.relative_to(TESTS)))
def test_what_was_recorded_is_the_same_when_it_is_written_again(path: Path) -> None:
    kind = RunRecord if path.name == "run.json" else Amendment
    recorded = json.loads(path.read_text())
    read = kind.model_validate_json(path.read_text(), strict=True)
    again = json.loads(read.model_dump_json())
    assert recorded["config"].items() <= again["config"].items()
    assert again["pipeline"] == recorded["pipeline"]
    newer = again["config"].keys() - recorded["config"].keys()
    assert all(again["config"][name] == TrainConfig().model_dump()[name] for name in newer)
    assert kind.model_validate_json(read.model_dump_json()) == read


@pytest.mark.parametrize("path", DECISIONS, ids=lambda one: str(one.relative_to(TESTS)))
def test_the_rules_of_a_decision_of_before_are_the_gates_options(path: Path) -> None:
    recorded = json.loads(path.read_text())
    # A part of the file, which its reader checks.
    del recorded["digest"]
    decision = Decision.model_validate(recorded)
    for name, value in recorded["rules"].items():
        assert getattr(decision.rules, "gate_minimum" if name == "minimum" else name) == value
    assert Decision.model_validate_json(decision.model_dump_json()) == decision
