"""What a run of the tests says at its end: where the seconds went, and how to look at a failure."""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

LOG = "log"
"""The property of a report that names a log."""
CPU = "cpu"
"""The property of a teardown's report that has the test's CPU seconds."""
_CPU_BEFORE = pytest.StashKey[float]()
_MOST_LOGS = 3
_TAIL_LINES = 15
_PHASES = ("setup", "call", "teardown")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--phases", action="store_true", help="show each file's seconds by phase")


def _cpu_s() -> float:
    """CPU seconds of this process, and of those that it started and waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the CPU seconds before the test."""
    item.stash[_CPU_BEFORE] = _cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the logs that a failed test's processes wrote last."""
    report = yield
    if report.when == "teardown":
        report.user_properties.append((CPU, _cpu_s() - item.stash[_CPU_BEFORE]))
    if report.failed:
        given: dict[str, object] = getattr(item, "funcargs", {})
        for log in newest_logs(value for value in given.values() if isinstance(value, Path)):
            report.user_properties.append((LOG, str(log)))
            lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
            report.sections.append((f"the end of {log}", "\n".join(lines)))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """As the very last lines: each failed test, its logs, and the command that runs it alone."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    reports = [one for kind in reporter.stats.values() for one in kind]
    phases = [one for one in reports if isinstance(one, pytest.TestReport)]
    not_collected = [one for one in reports if isinstance(one, pytest.CollectReport)]
    if session.config.getoption("--phases"):
        for line in seconds_by_phase(phases):
            reporter.write_line(line)
    for line in told_of_failures(one for one in [*phases, *not_collected] if one.failed):
        reporter.write_line(line)


def newest_logs(folders: Iterable[Path]) -> list[Path]:
    """The logs in a test's folders that were written last, the newest first."""
    logs = {log for folder in folders if folder.is_dir() for log in folder.rglob("*.log")}
    written = [log for log in logs if log.is_file() and log.stat().st_size]
    return sorted(written, key=os.path.getmtime, reverse=True)[:_MOST_LOGS]


def told_of_failures(failed: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Three lines for each failed test, and for each file that cannot be imported."""
    lines = []
    for report in failed:
        properties = getattr(report, "user_properties", ())
        logs = [str(path) for name, path in properties if name == LOG]
        lines += [
            f"{report.nodeid} failed ({report.when})",
            f"  its logs: {', '.join(logs) or 'none was written'}",
            f"  alone:    .venv/bin/pytest {shlex.quote(report.nodeid)}",
        ]
    return lines


def seconds_by_phase(reports: Iterable[pytest.TestReport]) -> list[str]:
    """A line for each file with the seconds of each phase, the slowest file first.

    And with its CPU seconds: the fewer they are beside the others, the more the file waits.
    """
    spent: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys((*_PHASES, CPU), 0.0))
    for report in reports:
        of_file = spent[report.location[0]]
        # Of a test whose process died there is a report of no phase.
        of_file[report.when if report.when in _PHASES else "call"] += report.duration
        of_file[CPU] += sum(seconds for name, seconds in report.user_properties if name == CPU)
    total = {file: sum(of_file[phase] for phase in _PHASES) for file, of_file in spent.items()}
    return [
        f"{total[file]:7.1f} s  {file}  "
        + "  ".join(f"{name} {seconds:.1f}" for name, seconds in spent[file].items())
        for file in sorted(spent, key=lambda one: -total[one])
    ]
