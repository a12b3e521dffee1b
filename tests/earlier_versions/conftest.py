"""The commands of today, as tests/flows has them."""

from __future__ import annotations

from tests.flows.conftest import environment, home, prefect_api

__all__ = ["environment", "home", "prefect_api"]
