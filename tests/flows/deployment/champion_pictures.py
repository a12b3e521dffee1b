"""Pictures of the pages on which three nightly retrainings can be looked up, for docs/results.md.

    python -m tests.flows.deployment.champion_nights NIGHTS
    python -m tests.flows.deployment.champion_pictures NIGHTS docs/pictures

The first command leaves the runs in the folder NIGHTS. The second opens the pages of `evertrain ui`
in headless Chromium, in a window that is 1440 pixels wide, and writes a PNG for each, or only for
the names given as further arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlflow import MlflowClient

from benchmarks.services import answers_at, free_port, wait_until_up
from tests import commands
from tests.browser import Browser, chromium, save
from tests.flows.conftest import ROOT, isolated
from tests.flows.deployment.champion_nights import MODEL
from tests.flows.deployment.deployed import found, wait_for
from tests.flows.deployment.page import end

KEPT = {
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
}
"""What MLflow keeps in a browser whose user has closed the assistant that opens by itself."""
TRAINING = "workflowType=machine_learning"
EVIDENT = ("tuesday", "wednesday")
"""The nights whose models were compared with a champion."""


@dataclass(frozen=True)
class Page:
    """What is opened and clicked for a picture, and what has to be there when it is taken."""

    url: str
    shows: tuple[str, ...]
    height_px: int
    clicked: tuple[str, ...] = ()

    def look(self, browser: Browser, file: Path) -> None:
        browser.resize(self.height_px)
        browser.open(self.url)
        for text in self.clicked:
            browser.click(text)
        browser.wait_for_texts(*self.shows)
        # A switch that is clicked is scrolled to.
        browser.scroll_to_top()
        save(browser.settled(), file)


@dataclass(frozen=True)
class Pages:
    """The addresses of `evertrain ui` for the nights of a folder."""

    home: Path
    mlflow: str
    prefect: str

    def all(self) -> dict[str, Page]:
        """The pages by the names of their pictures."""
        return self._of_runs() | self._of_the_model() | self._of_reports()

    def _of_runs(self) -> dict[str, Page]:
        uri = f"sqlite:///{self.home}/mlflow.db"
        client = MlflowClient(uri, uri)
        experiment = client.get_experiment_by_name("evertrain")
        assert experiment is not None
        number = experiment.experiment_id
        ids = {run.info.run_name: run.info.run_id for run in client.search_runs([number])}
        table = f"{self.mlflow}/#/experiments/{number}/runs"
        view = f"viewStateShareKey=evertrain-{MODEL}"
        two = f'runs=["{ids["monday"]}","{ids["tuesday"]}"]&experiments=["{number}"]'
        figure = "artifacts/gate/champion_and_challenger.png"
        return {
            "runs": Page(
                f"{table}?{view}&{TRAINING}",
                ("monday", "tuesday", "wednesday", "is not promoted", "Duration"),
                470,
            ),
            "compared": Page(
                f"{self.mlflow}/#/compare-runs?{two}&{TRAINING}",
                ("monday", "tuesday", "data.train", "test/accuracy"),
                1680,
                ("Visualizations", "Artifacts", "Show diff only"),
            ),
            "run": Page(
                f"{table}/{ids['tuesday']}?{TRAINING}",
                ("is not promoted", "test/accuracy", "flow run"),
                1000,
                ("Show more",),
            ),
            "metrics": Page(
                f"{table}/{ids['wednesday']}/model-metrics?{TRAINING}",
                ("best/validation", "samples_per_s", "epoch_loss"),
                1950,
                ("best/validation", "checkpoint"),
            ),
            **{
                f"gate-{night}": Page(f"{table}/{ids[night]}/{figure}?{TRAINING}", ("KB",), 760)
                for night in EVIDENT
            },
        }

    def _of_the_model(self) -> dict[str, Page]:
        model = f"{self.mlflow}/#/models/{MODEL}"
        texts = ("Version 3 serves", "Not promoted", "Became champion")
        said = {2: "Not promoted: ", 3: "Became champion: "}
        return {
            "model": Page(f"{model}?{TRAINING}", texts, 1000),
            **{
                f"version-{number}": Page(f"{model}/versions/{number}?{TRAINING}", (text,), 760)
                for number, text in said.items()
            },
        }

    def _of_reports(self) -> dict[str, Page]:
        artifact = f"{self.prefect}/artifacts/artifact"
        texts = ("McNemar", "recall")
        return {
            f"report-{night}": Page(f"{artifact}/{self._report(night)}", texts, 1560)
            for night in EVIDENT
        }

    def _report(self, run: str) -> str:
        artifacts = found(f"{self.prefect}/api", "artifacts", run)
        (page,) = (one for one in artifacts if one["key"] == "retrain-report")
        return str(page["id"])


@contextmanager
def pages_of(home: Path) -> Iterator[Pages]:
    """The pages as `evertrain ui` shows them while this lasts."""
    ports = free_port(), free_port()
    log = home / "ui.log"
    command = ("ui", "--mlflow-port", str(ports[0]), "--prefect-port", str(ports[1]))
    environment = isolated(home) | {"MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"}
    called = [*commands.EVERTRAIN, *command]
    process = commands.begin(called, log, "wb", cwd=ROOT, env=environment)
    try:
        wait_for(lambda: "Prefect: http" in log.read_text(), home)
        mlflow, prefect = (f"http://127.0.0.1:{port}" for port in ports)
        for health in (f"{prefect}/api/health", f"{mlflow}/health"):
            wait_until_up(partial(answers_at, health), log, process)
        yield Pages(home, mlflow, prefect)
    finally:
        end(process)


def main() -> None:
    home, folder = Path(sys.argv[1]).absolute(), Path(sys.argv[2])
    only = sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    with pages_of(home) as pages, chromium() as browser:
        browser.open(f"{pages.mlflow}/health")
        browser.wait_for_texts("OK")
        browser.keep(KEPT)
        every = pages.all()
        if unknown := set(only) - every.keys():
            raise SystemExit(f"no pictures are called {unknown}: {', '.join(every)}")
        for name in only or every:
            every[name].look(browser, folder / f"{name}.png")


if __name__ == "__main__":
    main()
