"""`evertrain verify-resume`: a proof for one's own workload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, Field

from evertrain_flows.cli.output.difference_rows import tensor_rows, value_rows
from evertrain_flows.cli.output.listings import DIFFERENT, print_mapping, print_rows
from evertrain_flows.cli.output.terminal import Bars, Screen, say
from train_core.client.verify_resume import (
    OnStep,
    Phase,
    VerifyResumeRequest,
    temporary_runs,
    verify_resume,
)
from train_core.config import WorkloadName
from train_core.differences import ResumeVerdict


class VerifyResumeCommand(BaseModel):
    """Prove that a workload is trained and resumed exactly, with real processes and a real SIGKILL.

    A short training runs four times on this machine's CPUs, without Ray. The second is killed in
    the middle of a step and resumed on another number of workers; then every tensor, the rest of
    the state and every metric of both are compared to the bit. Of the third one rank is killed,
    and the others train on in their processes. The fourth is of plain PyTorch, without
    evertrain's engine; each step's batches, losses, model and optimizer are compared. The exit
    code is 0 if nothing differs, 1 if something does and 2 if a training failed by itself.
    """

    workload: WorkloadName = Field(description="The workload to verify, as package.module:Name.")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="The workload's settings, a JSON object."
    )
    training: dict[str, Any] = Field(
        default_factory=dict,
        description="Further parameters of the training as `retrain` has them, a JSON object: "
        '{"precision": "bf16", "accumulation_steps": 2}.',
    )
    steps: int = Field(
        default=30,
        ge=8,
        description="Optimizer steps. The training split is cut so that they are two epochs, or "
        "more if the split is smaller.",
    )
    batch_size: int = Field(default=32, ge=1, description="Samples of one step.")
    workers: int = Field(default=2, ge=1, description="Ranks before the kill.")
    workers_after: int = Field(default=1, ge=1, description="Ranks after the kill.")
    kill_after: int = Field(
        default=0, ge=0, description="Steps done at the kill; 0: three fifths of all."
    )
    storage: str = Field(
        default="",
        description="Path or fsspec URL of a folder, in which the runs get folders of their own. "
        "Unset: a temporary one.",
    )
    keep: bool = Field(default=False, description="Keep the runs and the logs.")
    as_json: bool = Field(default=False, alias="json", description="Print JSON.")

    def cli_cmd(self) -> None:
        """Print the verdict; exit with code 1 if the runs differ."""
        asked = {name: getattr(self, name) for name in VerifyResumeRequest.model_fields}
        with temporary_runs(self.storage, keep=self.keep) as (folder, runs):
            request = VerifyResumeRequest(**asked | {"storage": runs})
            with _progress(request, quiet=self.as_json) as on_step:
                verdict = verify_resume(request, folder, on_step)
        kept = {"folder": str(folder), "storage": runs} if self.keep else {}
        if self.as_json:
            print_mapping(
                verdict.model_dump(mode="json") | {"cause": verdict.cause} | kept, as_json=True
            )
        else:
            print_verdict(verdict)
            if kept:
                say(f"The runs are in {runs}, their logs in {folder}")
        if not verdict.is_exact:
            raise SystemExit(DIFFERENT)


def print_verdict(verdict: ResumeVerdict) -> None:
    """Print whether they are identical, else the first that differs."""
    found = verdict.comparison
    story = (
        f"{verdict.workload}: {verdict.workers} workers, killed after step {verdict.killed_after}, "
        f"resumed by {verdict.workers_after} after step {verdict.resumed_after}"
    )
    if verdict.identical:
        say(
            f"identical  {story}. Checkpoints of steps {', '.join(map(str, found.steps))} and "
            f"{found.num_entries} journal entries, {found.num_validations} of them validations, "
            "are the same to the bit."
        )
    else:
        _print_difference(verdict, story)
    print_in_place(verdict)
    if verdict.not_plain:
        say(f"not compared with plain PyTorch: {verdict.not_plain}")
    elif plain := verdict.plain_differs:
        say(f"not plain  Plain PyTorch gives another result, since step {plain.step}: {plain.what}")
    else:
        say("plain      Plain PyTorch, without evertrain's engine, gives the same in each step.")
    if verdict.cause:
        say("", verdict.cause)


def print_in_place(verdict: ResumeVerdict) -> None:
    """Print what became of the training of which one rank was killed."""
    if verdict.not_in_place:
        say(f"not tried in place: {verdict.not_in_place}")
    elif since := verdict.in_place_differs:
        say(f"not in place  With a rank that was replaced, since step {since.step}: {since.what}")
    elif verdict.in_place and not verdict.in_place.is_same:
        say("not in place  With a rank that was replaced, the end is another one.")
    else:
        say("in place   A rank was killed, the others trained on: the end is the same to the bit.")


def _print_difference(verdict: ResumeVerdict, story: str) -> None:
    found = verdict.comparison
    say(f"different  {story}. A: undisturbed, B: killed and resumed.")
    if since := verdict.resumed_differs:
        say(f"since      step {since.step}: {since.what}")
    if one := found.metric:
        a, b = json.dumps(one.a), json.dumps(one.b)
        say(f"first metric  step {one.step}, {one.name}: A {a}, B {b}")
    if state := found.state:
        step = found.steps[-1]
        if state.tensors:
            first = state.tensors[0]
            a, b = json.dumps(first.a), json.dumps(first.b)
            say(f"first tensor  step {step}, {first.name} {json.dumps(first.index)}: A {a}, B {b}")
        say("", f"The state after step {step}: {len(state.tensors)} of {state.num_tensors} tensors")
        print_rows(tensor_rows(state.tensors), as_json=False, empty="no tensor differs")
        values = [*state.values, *state.metrics]
        if values:
            print_rows(value_rows(values), as_json=False, empty="")


@contextmanager
def _progress(request: VerifyResumeRequest, *, quiet: bool) -> Iterator[OnStep]:
    """A bar for each of the trainings on a terminal, a line for each elsewhere."""
    screen = Screen(to_stderr=True, quiet=quiet)
    titles: dict[Phase, tuple[str, int]] = {
        "undisturbed": (f"undisturbed, {request.workers} workers", request.steps),
        "killed": (f"to be killed, {request.workers} workers", request.killed_after),
        "resumed": (f"resumed, {request.workers_after} workers", request.steps),
        "in place": (f"in place, {request.workers} workers", request.steps),
        "plain": ("in plain PyTorch", request.steps),
    }
    is_shown = screen.is_terminal
    with Bars(screen, counts=True, stays=True, disable=not is_shown) as bars:
        numbers = {
            phase: bars.add(title, total, starts=False) for phase, (title, total) in titles.items()
        }

        def on_step(phase: Phase, step: int) -> None:
            if bars.start(numbers[phase]) and not is_shown:
                screen.line(titles[phase][0])
            bars.update(numbers[phase], done=step)

        yield on_step
