"""Some samples of a dataset, as a dataset."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from train_core.datasets.protocols import Dataset


def few(whole: Dataset, indices: npt.NDArray[np.int64]) -> Dataset:
    """The samples of `whole` at `indices`, read as `whole` reads its own."""
    subset = torch.utils.data.Subset(cast("torch.utils.data.Dataset[Any]", whole), indices.tolist())
    return cast("Dataset", subset)
