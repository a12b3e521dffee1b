"""The command `evertrain`. Every command's arguments are a typed model; see `commands/`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSubCommand,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from flows import embedded
from flows.commands.checkpoints import DiffCommand, ExportCommand
from flows.commands.look import LsCommand, ShowCommand, VerifyCommand
from flows.commands.mirror import MirrorCommand
from flows.commands.proof import VerifyResumeCommand
from flows.commands.prune import PruneCommand
from flows.commands.retrain import DemoCommand, RetrainCommand
from flows.commands.runs import RunsCommand
from flows.commands.ui import UiCommand
from flows.commands.workloads import WorkloadsCommand
from flows.parameters import absolute, default_storage, last_asked
from train_core.errors import ConfigError, EvertrainError, StoppedError
from train_core.storage.patience import HASTE
from train_core.storage.run_folder import RunFolder

BAD_INPUT = 2
INTERRUPTED = 130


class Evertrain(BaseSettings):
    """Retrain PyTorch models and never lose a step. `evertrain COMMAND --help` tells more."""

    model_config = SettingsConfigDict(
        cli_prog_name="evertrain",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
    )

    retrain: CliSubCommand[RetrainCommand] = Field(description="Run the whole pipeline.")
    demo: CliSubCommand[DemoCommand] = Field(description="Run it on handwritten digits.")
    runs: CliSubCommand[RunsCommand] = Field(description="List, resume, stop, extend, fork runs.")
    workloads: CliSubCommand[WorkloadsCommand] = Field(description="What can be trained.")
    ls: CliSubCommand[LsCommand] = Field(description="List a storage's runs, a run's checkpoints.")
    show: CliSubCommand[ShowCommand] = Field(description="Show a run or a checkpoint.")
    verify: CliSubCommand[VerifyCommand] = Field(description="Check stored bytes by digest.")
    prune: CliSubCommand[PruneCommand] = Field(description="Delete what nothing keeps of a run.")
    mirror: CliSubCommand[MirrorCommand] = Field(description="Bring MLflow up to date with a run.")
    diff: CliSubCommand[DiffCommand] = Field(description="Compare two runs or checkpoints.")
    export: CliSubCommand[ExportCommand] = Field(description="Write weights as one plain file.")
    verify_resume: CliSubCommand[VerifyResumeCommand] = Field(
        alias="verify-resume", description="Prove that a workload resumes exactly."
    )
    ui: CliSubCommand[UiCommand] = Field(description="Open MLflow's and Prefect's pages.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 (named by the library)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (named by the library)
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (named by the library)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (named by the library)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags over the configuration file; an environment variable `LS` means nothing here."""
        return (init_settings,)

    def cli_cmd(self) -> None:
        """Run the command that was named."""
        CliApp.run_subcommand(self)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and give its exit code: 0, 2 for an error, 130 if it was stopped."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _make_importable(os.getcwd())
    try:
        configuration: dict[str, Any] = _configuration(arguments)
        with _orderly_termination():
            CliApp.run(Evertrain, arguments or ["--help"], **configuration)
    except ValidationError as error:
        return _refuse(_one_line(error, arguments))
    except SettingsError as error:
        return _refuse(str(error).partition("\n")[0].removeprefix("error parsing CLI: "))
    except StoppedError as error:
        sys.stderr.write(f"evertrain: {error}\n")
        return INTERRUPTED
    except (EvertrainError, OSError, EOFError) as error:
        return _refuse(" ".join(str(error).split()) or type(error).__name__)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def command() -> NoReturn:
    """The program `evertrain`."""
    embedded.leave(main())


def read_configuration(path: str) -> dict[str, Any]:
    """The parameters in a YAML or JSON file. Raises ConfigError."""
    try:
        found = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"configuration {path!r} cannot be read: {reason}. Give a YAML or JSON file"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"configuration {path!r} is not a mapping of parameters to values")
    return found


def _configuration(arguments: list[str]) -> dict[str, dict[str, Any]]:
    """What is laid under the flags of `retrain` before anything is checked.

    Of a run that exists, what it was asked last; over it, what `--config` names.
    """
    if arguments[:1] != ["retrain"]:
        return {}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--config", "--run", "--storage", "--num-workers"):
        parser.add_argument(flag)
    try:
        known, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    given = read_configuration(known.config) if known.config else {}
    flags = {name: value for name, value in vars(known).items() if value is not None}
    found = _of_run(given | flags) | given
    return {"retrain": found} if found else {}


def _of_run(asked: dict[str, Any]) -> dict[str, Any]:
    """What the run that is asked for was asked last, if there is one."""
    run, storage = asked.get("run"), asked.get("storage")
    # Values of a file may be anything; what is wrong with them is told when they are checked.
    if not isinstance(run, str) or not run or not isinstance(storage, str | None):
        return {}
    folder = RunFolder(absolute(storage) if storage else default_storage(), run)
    folder.store = folder.store.with_patience(HASTE)
    if not folder.exists():
        return {}
    found = last_asked(folder)
    # The run's own number of shards holds without being asked for.
    del found["num_shards"]
    if "num_workers" in asked:
        # One number is asked for, or both are.
        del found["min_workers"]
    return found


def _make_importable(folder: str) -> None:
    """Let workloads in `folder` be found, here and in the driver and the workers."""
    path = os.environ.get("PYTHONPATH", "")
    if folder not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{path}{os.pathsep}{folder}" if path else folder
    if folder not in sys.path:
        sys.path.append(folder)


@contextmanager
def _orderly_termination() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, so that the processes it started end too."""

    def leave(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _one_line(error: ValidationError, arguments: list[str]) -> str:
    found = []
    for one in error.errors(include_url=False):
        # The first places are the commands' names.
        commands = zip(one["loc"], arguments, strict=False)
        count = sum(1 for _ in takewhile(lambda both: both[0] == both[1], commands))
        name = "".join(str(part) for part in one["loc"][count : count + 1])
        if one["type"] == "missing":
            found.append(f"--{name} is required")
            continue
        given = f"{name}: ", f", got {one['input']!r}"
        before, after = given if name else ("", "")
        found.append(f"{before}{one['msg'].removeprefix('Value error, ')}{after}")
    return "; ".join(found)


def _refuse(message: str) -> int:
    sys.stderr.write(f"evertrain: {message}\n")
    return BAD_INPUT


if __name__ == "__main__":
    command()
