"""How a cluster is asked: its login, what is tried again, and what its answers mean."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.web import served
from train_core.client.carriers import ray_jobs
from train_core.client.carriers.ray_jobs import RayJobs
from train_core.errors import ResourceError, StageError
from train_core.storage.objects.retry_policy import RetryPolicy


class Dashboard(BaseHTTPRequestHandler):
    """Answers what it is told to: the first answer to a request, then the next."""

    answers: dict[str, list[tuple[int, str]]]
    logins: list[str | None]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.logins.append(self.headers.get("Authorization"))
        left = self.answers.get(f"{self.command} {self.path}", [(404, "nothing there")])
        code, text = left.pop(0) if len(left) > 1 else left[0]
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET  # noqa: N815 (as the server looks for it)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


VERSION = {"GET /api/version": [(200, "{}")]}


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    Dashboard.answers, Dashboard.logins = dict(VERSION), []
    with served(Dashboard) as address:
        yield address


def test_the_login_is_that_of_rays_own_client(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RayJobs(url)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("of-the-home\n")
    RayJobs(url)
    (tmp_path / "token").write_text("of-a-file")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    RayJobs(url)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-the-environment")
    RayJobs(url)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    RayJobs(url)
    bearers = ["Bearer of-the-home", "Bearer of-a-file", "Bearer of-the-environment"]
    assert Dashboard.logins == [None, *bearers, None]


def test_a_cluster_that_refuses_the_login_is_an_error_of_the_request(url: str) -> None:
    Dashboard.answers["GET /api/version"] = [(401, "Missing authentication token")]
    with pytest.raises(ResourceError, match=r"HTTP 401: Missing.*RAY_AUTH_TOKEN"):
        RayJobs(url)


def test_a_token_that_is_not_where_it_is_said_to_be_is_told(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere/token")
    with pytest.raises(ResourceError, match="/nowhere/token"):
        RayJobs(url)


def test_a_job_is_over_if_ray_says_so_and_unknown_while_it_does_not_answer(url: str) -> None:
    jobs = RayJobs(url)
    running, failed = '{"status": "RUNNING"}', '{"status": "FAILED", "message": "exit code 1"}'
    Dashboard.answers["GET /api/jobs/a"] = [
        (200, running),
        (503, "away"),
        (200, "<html>a proxy's page</html>"),
        (200, failed),
    ]
    assert [jobs.has_ended("a") for _ in range(4)] == [False, None, None, True]
    assert jobs.end_of("a") == "job a FAILED: exit code 1"
    assert jobs.has_ended("of-nobody")


def test_a_job_is_submitted_until_the_cluster_takes_it(url: str) -> None:
    jobs = RayJobs(url)
    Dashboard.answers["POST /api/jobs/"] = [(503, "away"), (500, "no agent"), (200, "{}")]
    assert jobs.submit("a", ["true"], {})


def test_a_name_that_is_taken_is_no_new_job(url: str) -> None:
    jobs = RayJobs(url)
    # So does Ray answer it.
    Dashboard.answers["POST /api/jobs/"] = [(500, "400: Job with submission_id a already exists")]
    Dashboard.answers["GET /api/jobs/a"] = [(200, '{"status": "PENDING"}')]
    assert not jobs.submit("a", ["true"], {})
    assert jobs.is_running("a")


def test_what_is_refused_is_not_asked_again(url: str) -> None:
    jobs = RayJobs(url)
    Dashboard.answers["POST /api/jobs/"] = [(400, "no such thing"), (200, "{}")]
    with pytest.raises(ResourceError, match="does not take the job a: HTTP 400: no such thing"):
        jobs.submit("a", ["true"], {})


def test_a_cluster_that_stays_away_fails_the_task(url: str) -> None:
    jobs = RayJobs(url)
    Dashboard.answers["GET /api/jobs/a"] = [(503, "away")]
    soon = RetryPolicy(budget_s=0.5, first_pause_s=0.1)
    with (
        patch.object(ray_jobs, "_RETRIES", soon),
        pytest.raises(StageError, match=r"HTTP 503: away .*given up after"),
    ):
        jobs.is_running("a")
