"""What a rank computes on, as far as the bits of the numbers depend on it.

Libraries choose their kernels by the processor's vendor, its instructions and some variables of the
environment; another kernel adds up in another order.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from train_core.errors import ConfigError
from train_core.rank.distributed.group import Group

_SWITCHES = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
    *("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE"),
)
"""Variables by which PyTorch, oneDNN and MKL choose their kernels."""
_INSTRUCTIONS = (
    *("avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("avx_vnni", "amx_bf16", "amx_int8", "amx_fp16", "asimd", "asimdhp", "bf16", "sve", "sve2"),
)
"""Those, as Linux names them, for which these libraries have kernels of their own."""
UNKNOWN = "unknown"
"""What a training of an earlier version was computed on."""
_log = logging.getLogger(__name__)


def processor_of(device: torch.device) -> str:
    """As `AuthenticAMD family 25, avx2 fma`; of a GPU its name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _described(_facts(), os.environ)


def _facts() -> dict[str, str]:
    """What Linux says of the first processor; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _described(facts: dict[str, str], environment: os._Environ[str] | dict[str, str]) -> str:
    vendor = facts.get("vendor_id") or facts.get("CPU implementer") or platform.machine()
    family = facts.get("cpu family") or facts.get("CPU architecture")
    has = set(facts.get("flags", facts.get("Features", "")).split())
    parts = [
        f"{vendor} family {family}" if family else vendor,
        " ".join(name for name in _INSTRUCTIONS if name in has),
        " ".join(f"{name}={environment[name]}" for name in _SWITCHES if environment.get(name)),
    ]
    return ", ".join(filter(None, parts))


def _by_rank(of_ranks: Sequence[str]) -> str:
    """All of them, and which ranks have which: a rank computes its own shards."""
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(of_ranks):
        ranks.setdefault(name, []).append(rank)
    if len(ranks) == 1:
        return of_ranks[0]
    return " and ".join(f"{name} (ranks {', '.join(map(str, of))})" for name, of in ranks.items())


def continued_on(was: tuple[str, ...], group: Group, *, is_strict: bool) -> tuple[str, ...]:
    """The processors that a training was computed on, and now those of this attempt's ranks.

    One that follows itself is not repeated. Others than before are warned about. Raises ConfigError
    for them if `is_strict`; on all ranks.
    """
    now = _by_rank(group.gather(processor_of(group.device)))
    if not was or was == (UNKNOWN,):
        return (*was, now)
    if was[-1] == now:
        return was
    changed = f"the training was computed on {was[-1]}, and goes on on {now}"
    if is_strict:
        raise ConfigError(
            f"{changed}: its bits would be others, and strict is set. Continue it on what it was "
            "computed on, or without strict"
        )
    if group.is_rank0:
        _log.warning("%s: the bits of the results may be others", changed)
    return (*was, now)
