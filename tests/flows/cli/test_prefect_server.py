"""The temporary server of Prefect's that a command starts, and that ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import commands
from tests.flows.conftest import isolated
from tests.marks import slow

REFUSED = """
import atexit
import sys
from evertrain_flows.cli import prefect_server

prefect_server.configure(verbose=False)
with prefect_server.warming_up() as warming:
    atexit.register(lambda: print(warming.is_alive()))
    sys.exit(2)
"""
RUNS = """
import sys
from evertrain_flows.cli import prefect_server

prefect_server.configure(verbose=False)
with prefect_server.warming_up() as warming:
    warming.join()
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.hello()
        print(client.api_url, flush=True)
    sys.stdin.read()
"""
NAMED = """
import psutil
from evertrain_flows.cli import prefect_server

prefect_server.configure(verbose=False)
with prefect_server.warming_up() as warming:
    warming.join()
    from prefect.settings import PREFECT_API_URL

    print(PREFECT_API_URL.value(), psutil.Process().children())
"""
PROFILES = """
active = "mine"

[profiles.mine]
PREFECT_API_URL = "http://127.0.0.1:9/api"
"""


def test_the_command_line_begins_without_loading_prefect() -> None:
    # It reads its settings as it is imported, and takes longer than the driver's start.
    late = ("prefect", "torch")
    code = f"import sys, evertrain_flows.cli.app; print([one in sys.modules for one in {late}])"
    found = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert found == "[False, False]\n"


@pytest.mark.slow
def test_a_command_that_is_refused_does_not_leave_in_the_middle_of_an_import(
    tmp_path: Path,
) -> None:
    done = commands.run([sys.executable, "-c", REFUSED], env=isolated(tmp_path))
    assert (done.returncode, done.stdout) == (2, "False\n")


@pytest.mark.promise("temporary-server", "loopback")
@pytest.mark.parametrize("number", [slow(signal.SIGTERM), signal.SIGKILL])
def test_the_server_ends_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNS],
        env=isolated(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout
        assert command.stdout.readline().startswith("http://127.0.0.1:")
        (server,) = (
            one
            for one in psutil.Process(command.pid).children()
            if any("prefect.server" in argument for argument in one.cmdline())
        )
        addresses = [one.laddr for one in server.net_connections(kind="inet") if not one.raddr]
        assert [address.ip for address in addresses] == ["127.0.0.1"]
        # Ctrl-C, which reaches all of the terminal's processes, does not reach it.
        assert os.getsid(server.pid) != os.getsid(command.pid)
        command.send_signal(number)
    assert not psutil.wait_procs([server], timeout=10)[1]
    home = tmp_path / "prefect"
    assert (home / "prefect.db").exists()
    # What a server of this home finds there that comes later: no block type is recorded as known.
    assert not (home / "memo_store.toml").exists()


@pytest.mark.promise("environment")
@pytest.mark.slow
def test_where_a_profile_names_a_server_none_is_started(tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    home.mkdir()
    (home / "profiles.toml").write_text(PROFILES)
    done = subprocess.run(
        [sys.executable, "-c", NAMED],
        env=isolated(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == "http://127.0.0.1:9/api []\n"
