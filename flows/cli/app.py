"""The command `evertrain`. Each command is a typed model; `commands/` says how to add one."""

from __future__ import annotations

import signal
import sys
from argparse import Action, ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    CliSubCommand,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from evertrain_flows.cli import prefect_server
from evertrain_flows.cli.commands.automations import AutomationsCommand
from evertrain_flows.cli.commands.champions import ApproveCommand, ChampionsCommand, RollbackCommand
from evertrain_flows.cli.commands.check import CheckCommand
from evertrain_flows.cli.commands.diff import DiffCommand
from evertrain_flows.cli.commands.export import ExportCommand
from evertrain_flows.cli.commands.infer import InferCommand
from evertrain_flows.cli.commands.inspect import LsCommand, ShowCommand, VerifyCommand
from evertrain_flows.cli.commands.mirror import MirrorCommand
from evertrain_flows.cli.commands.prune import PruneCommand
from evertrain_flows.cli.commands.retrain import DemoCommand, RetrainCommand
from evertrain_flows.cli.commands.runs import RunsCommand
from evertrain_flows.cli.commands.slots import SlotsCommand
from evertrain_flows.cli.commands.ui import UiCommand
from evertrain_flows.cli.commands.verify_resume import VerifyResumeCommand
from evertrain_flows.cli.commands.workloads import WorkloadsCommand
from evertrain_flows.cli.configuration import configuration_of
from evertrain_flows.cli.output.terminal import (
    complain,
    discard_output,
    make_printable,
    say,
    warnings_shown,
)
from evertrain_flows.cli.refusals import of_arguments, of_values, with_plain_json
from train_core.errors import EvertrainError, StoppedError
from train_core.proxies import ask_loopback_directly

BAD_INPUT = 2
"""The exit code after an error."""
INTERRUPTED = 130
"""After a stop, as by Ctrl-C."""
UNREAD = 141
"""After the end of who read the output, as `head`: what SIGPIPE makes of other programs."""


class Evertrain(BaseSettings):
    """Retrain PyTorch models and never lose a step. `evertrain COMMAND --help` lists arguments."""

    model_config = SettingsConfigDict(
        cli_prog_name="evertrain",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
    )

    retrain: CliSubCommand[RetrainCommand] = Field(description="Run the whole pipeline.")
    demo: CliSubCommand[DemoCommand] = Field(description="Run the pipeline on handwritten digits.")
    infer: CliSubCommand[InferCommand] = Field(
        description="Score data with a run's checkpoint, or with the champion."
    )
    runs: CliSubCommand[RunsCommand] = Field(description="List, resume, stop, extend, fork runs.")
    workloads: CliSubCommand[WorkloadsCommand] = Field(
        description="List workloads, or one's settings."
    )
    ls: CliSubCommand[LsCommand] = Field(description="List a storage's runs, a run's checkpoints.")
    show: CliSubCommand[ShowCommand] = Field(description="Show a run or a checkpoint.")
    verify: CliSubCommand[VerifyCommand] = Field(description="Check stored bytes by digest.")
    prune: CliSubCommand[PruneCommand] = Field(description="Delete checkpoints that no rule keeps.")
    mirror: CliSubCommand[MirrorCommand] = Field(description="Bring MLflow up to date with a run.")
    champions: CliSubCommand[ChampionsCommand] = Field(
        description="Show which version was champion when, and why."
    )
    rollback: CliSubCommand[RollbackCommand] = Field(
        description="Make an earlier version the champion again."
    )
    approve: CliSubCommand[ApproveCommand] = Field(
        description="Approve or reject a version that waits for a person."
    )
    diff: CliSubCommand[DiffCommand] = Field(description="Compare two runs or checkpoints.")
    export: CliSubCommand[ExportCommand] = Field(description="Write weights as one plain file.")
    check: CliSubCommand[CheckCommand] = Field(
        description="Rehearse a workload: what would go wrong, in a second."
    )
    verify_resume: CliSubCommand[VerifyResumeCommand] = Field(
        alias="verify-resume", description="Prove that a workload resumes exactly."
    )
    slots: CliSubCommand[SlotsCommand] = Field(
        description="Show, or free, what holds a deployment's slots at Prefect's server."
    )
    automations: CliSubCommand[AutomationsCommand] = Field(
        description="Create or update Prefect's automations from files."
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
    """Run the command line and give its exit code: 0, or one of those above."""
    arguments = sys.argv[1:] if arguments is None else arguments
    make_printable()
    ask_loopback_directly()
    try:
        arguments = with_plain_json(arguments)
        configuration: dict[str, Any] = configuration_of(arguments)
        with _orderly_termination(), warnings_shown():
            CliApp.run(Evertrain, arguments or ["--help"], _parser(), **configuration)
    except ValidationError as error:
        return _refuse(of_values(error, arguments))
    except SettingsError as error:
        return _refuse(of_arguments(error))
    except StoppedError as error:
        complain(str(error))
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, as `head`, has seen enough.
        discard_output()
        return UNREAD
    except (EvertrainError, OSError, EOFError) as error:
        return _refuse(str(error) or type(error).__name__)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


@cache
def _parser() -> CliSettingsSource[ArgumentParser]:
    """The parser of all commands' arguments; to make it takes longer than most commands do."""
    source: CliSettingsSource[ArgumentParser] = CliSettingsSource(Evertrain)
    source.root_parser.add_argument(
        "--version", action=_ShowVersion, nargs=0, help="show the version and exit"
    )
    return source


class _ShowVersion(Action):
    """Reads the version only if it is asked for: a checkout need not be installed."""

    def __call__(self, parser: ArgumentParser, *_: object) -> NoReturn:
        try:
            say(f"evertrain {version('evertrain')}")
        except PackageNotFoundError:
            parser.error("evertrain is not installed here: `make venv` installs it")
        parser.exit()


def command() -> NoReturn:
    """The program `evertrain`."""
    prefect_server.exit_command(main())


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


def _refuse(message: str) -> int:
    complain(message)
    return BAD_INPUT
