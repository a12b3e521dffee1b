"""Images as arrays, by one rule for training and for inference."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from train_core.datasets.faulty_files import naming
from train_core.datasets.files import DataFile, bytes_of
from train_core.errors import DataError
from train_core.policy.logins import hide_logins

_DEEP_GREY = ("I", "I;16", "I;16L", "I;16B", "F")
_AS_THEY_ARE = ("L", "RGB", *_DEEP_GREY)
"""Pillow's modes that are read without a change."""


def read_image(file: DataFile | str | os.PathLike[str]) -> npt.NDArray[Any]:
    """The image: uint8 of shape (H, W) or (H, W, 3), upright; deep grey as uint16, int32, float32.

    An image with a palette or with transparency becomes RGB. Raises DataError for a file that is
    no image, and for colours of 16 bits, of which Pillow reads 8.
    """
    uri, data = bytes_of(file)
    return image_of(data, uri)


def image_of(data: bytes, uri: str) -> npt.NDArray[Any]:
    """As `read_image`, of the bytes of the file at `uri`."""
    with naming(uri, "image"):
        image = Image.open(io.BytesIO(data))
        if image.mode not in _DEEP_GREY and any(";16" in str(one.args) for one in image.tile):
            raise DataError(
                f"{hide_logins(uri)} has colours of 16 bits, of which 8 would be lost: store it "
                "with 8 bits, or as grey"
            )
        # A camera that was held upright says so, and stores the picture as its sensor lies.
        upright = ImageOps.exif_transpose(image)
        return np.asarray(upright if upright.mode in _AS_THEY_ARE else upright.convert("RGB"))
