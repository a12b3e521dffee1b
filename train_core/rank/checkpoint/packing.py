"""A nested state as JSON and named tensors, and back again as it was: `pack` and `unpack`.

Tensors, numbers (numpy's, too), strings, bytes, None, numpy arrays, torch's dtypes, devices and
sizes, and the containers of Python's standard library come back with their types. Every other type
is refused: nothing is pickled, and nothing that is read is imported.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from train_core.errors import CheckpointError, WorkloadError
from train_core.rank.distributed.fsdp import is_distributed

_TENSOR, _TUPLE, _ITEMS, _TYPE = "$tensor", "$tuple", "$items", "$type"
_ON_HOST = "host"
"""Beside a tensor's name: it lies in main memory, while others of the state lie on a device."""
_MARKS = {_TENSOR, _TUPLE, _ITEMS, _TYPE}
_FACTORIES = {one.__name__: one for one in (bool, dict, float, int, list, set, str, tuple)}
"""What a defaultdict may fill itself with."""
_NUMPY_TYPES = frozenset(
    np.dtype(kind).str for kind in ("?", *"bhilqBHILQ", "e", "f", "d", "F", "D")
)
_SPELLED = "UmM"
"""The kinds of numpy's types of which no tensor is made: texts, durations and times."""
_MOST_FIELDS = 1000


def pack(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """The state as JSON, with each tensor replaced by its name, and the tensors by name.

    A tensor's name is its path, joined by `/`. Raises WorkloadError for a value that does not come
    back as it is.
    """
    tensors: dict[str, Tensor] = {}
    marks: dict[str, dict[str, Any]] = {}

    def visit(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            name = named(value, path)
            marks[name] = {_TENSOR: name}
            return marks[name]
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) is tuple:
            return {_TUPLE: [visit(item, (*path, str(i))) for i, item in enumerate(value)]}
        if type(value) is list:
            return [visit(item, (*path, str(i))) for i, item in enumerate(value)]
        if type(value) is dict:
            if all(type(key) is str for key in value) and not _MARKS & value.keys():
                return {key: visit(item, (*path, key)) for key, item in value.items()}
            return {
                _ITEMS: [
                    [visit(key, (*path, "key")), visit(item, (*path, str(key)))]
                    for key, item in value.items()
                ]
            }
        return {_TYPE: _typed(value, path, visit)}

    def named(tensor: Tensor, path: tuple[str, ...]) -> str:
        name = "/".join(path)
        if name in tensors:
            raise WorkloadError(
                f"two tensors of the state have the same path {name!r}, as their keys are "
                "joined by `/`: give one of these keys another name"
            )
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            what = "no memory" if tensor.is_meta else f"the layout {tensor.layout}"
            if tensor.is_quantized:
                what = "quantized values"
            raise WorkloadError(
                f"the tensor at {name} has {what}, which no checkpoint can have: keep it in dense "
                "tensors, as indices and values, and put it together where it is used"
            )
        tensors[name] = tensor
        return name

    plain = visit(state, ())
    if any(tensor.device.type != "cpu" for tensor in tensors.values()):
        for name, tensor in tensors.items():
            if tensor.device.type == "cpu":
                marks[name][_ON_HOST] = True
    return plain, tensors


def _typed(
    value: Any, path: tuple[str, ...], visit: Callable[[Any, tuple[str, ...]], Any]
) -> list[Any]:
    """The name of the value's type, and what it is made of again. Raises WorkloadError."""

    def listed(values: Any) -> list[Any]:
        return [visit(item, (*path, str(i))) for i, item in enumerate(values)]

    kind = type(value)
    if kind in (OrderedDict, Counter):
        return [kind.__name__, visit(dict(value), path)]
    if kind is defaultdict:
        factory = value.default_factory
        if factory is None or factory in _FACTORIES.values():
            return ["defaultdict", [factory and factory.__name__, visit(dict(value), path)]]
    if kind is torch.Size or kind is set or kind is frozenset:
        return [kind.__name__, listed(value)]
    if kind is deque:
        return ["deque", [value.maxlen, listed(value)]]
    if isinstance(value, tuple) and (fields := _fields(kind)):
        return ["namedtuple", [kind.__name__, fields, listed(value)]]
    if kind is complex:
        return ["complex", [value.real, value.imag]]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if kind is torch.dtype or kind is torch.device:
        return [kind.__name__, str(value).removeprefix("torch.")]
    if isinstance(value, np.generic | np.ndarray) and (found := _of_numpy(value)) is not None:
        name, content = found
        return [name, visit(content, path) if isinstance(content, Tensor) else content]
    raise WorkloadError(
        f"the state holds a {kind.__name__} at {'/'.join(path) or 'its root'}, which would not "
        "come back as it is: only tensors, numbers, strings, bytes, None, numpy arrays, and the "
        "containers of Python's standard library can be saved"
    )


def _of_numpy(value: np.generic | np.ndarray[Any, Any]) -> tuple[str, Any] | None:
    """The name of the kind of numpy's value, and what it is made of again; None: it is not."""
    name, kind = value.dtype.str, value.dtype.kind
    if isinstance(value, np.generic):
        if name in _NUMPY_TYPES:
            plain, _ = pack(value.item())
            return "numpy", [name, plain]
        # The `str` and `item` of numpy drop NULs at the end.
        return ("text", "".join(value)) if isinstance(value, np.str_) else None
    if name in _NUMPY_TYPES and type(value) is np.ndarray:
        return "array", torch.from_numpy(np.array(value))
    if kind in _SPELLED and type(value) is np.ndarray:
        whole = value.astype(np.int64) if kind in "mM" else value
        return "spelled", [name, list(value.shape), whole.ravel().tolist()]
    return None


def _fields(kind: type) -> list[str]:
    """The names of a named tuple's fields; empty if it is none, or has more than fields."""
    fields = getattr(kind, "_fields", ())
    # torch's and Python's own structures of results have no names that they could be made of again.
    return list(fields) if hasattr(kind, "_make") else []


def unpack(
    plain: Any,
    tensors: dict[str, Tensor],
    place: Callable[[str, Tensor], Tensor] = lambda _, tensor: tensor,
) -> Any:
    """The state that `pack` split.

    `place` gives a tensor, by its name, where it shall lie, unless it lay in main memory while
    others lay on a device. A named tuple comes back as one of that name and these fields, whose
    class is made anew. Raises CheckpointError if a tensor is missing, or if `pack` cannot have
    given this.
    """

    def visit(value: Any) -> Any:
        if isinstance(value, list):
            return [visit(item) for item in value]
        if not isinstance(value, dict):
            return value
        if _TENSOR in value:
            if value[_TENSOR] not in tensors:
                raise CheckpointError(f"the checkpoint lacks the tensor {value[_TENSOR]!r}")
            found = tensors[value[_TENSOR]]
            return found if value.get(_ON_HOST) else place(value[_TENSOR], found)
        if _TUPLE in value:
            return tuple(visit(item) for item in value[_TUPLE])
        if _ITEMS in value:
            return {visit(key): visit(item) for key, item in value[_ITEMS]}
        if _TYPE in value:
            kind, content = value[_TYPE]
            return _MAKERS[kind](visit, content)
        return {key: visit(item) for key, item in value.items()}

    try:
        return visit(plain)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        # torch's own kinds of RuntimeError are of the device: the checkpoint is as it should be.
        of_device = isinstance(error, RuntimeError) and type(error) is not RuntimeError
        if isinstance(error, CheckpointError) or (
            of_device and not isinstance(error, RecursionError)
        ):
            raise
        raise CheckpointError(
            "the checkpoint's state is not as evertrain writes one: a part of it is missing, of "
            "another kind, or nested too deeply"
        ) from error


_Make = Callable[[Callable[[Any], Any], Any], Any]


def _defaultdict(visit: Callable[[Any], Any], content: Any) -> Any:
    name, entries = content
    return defaultdict(None if name is None else _FACTORIES[name], visit(entries))


def _namedtuple(visit: Callable[[Any], Any], content: Any) -> Any:
    name, fields, values = content
    if len(fields) > _MOST_FIELDS:
        raise ValueError("too many fields")
    return _named_class(name, tuple(fields))(*visit(values))


@cache
def _named_class(name: str, fields: tuple[str, ...]) -> Any:
    # It refuses what is no identifier.
    return namedtuple(name, fields)  # noqa: PYI024 (the fields are not known here)


def _numpy(visit: Callable[[Any], Any], content: Any) -> Any:
    name, value = content
    if name not in _NUMPY_TYPES:
        raise ValueError(name)
    return np.dtype(name).type(visit(value))


def _spelled(name: str, shape: list[int], values: list[Any]) -> Any:
    dtype = np.dtype(name)
    if dtype.kind not in _SPELLED:
        raise ValueError(name)
    raw = np.array(values, np.int64 if dtype.kind in "mM" else dtype)
    return raw.astype(dtype).reshape(shape)


def _named_in_torch(kind: type) -> _Make:
    def make(_visit: Callable[[Any], Any], content: Any) -> Any:
        found = torch.device(content) if kind is torch.device else getattr(torch, content)
        if not isinstance(found, kind):
            raise TypeError(content)
        return found

    return make


_MAKERS: dict[str, _Make] = {
    "OrderedDict": lambda visit, content: OrderedDict(visit(content)),
    "Counter": lambda visit, content: Counter(visit(content)),
    "defaultdict": _defaultdict,
    "Size": lambda visit, content: torch.Size(visit(content)),
    "set": lambda visit, content: set(visit(content)),
    "frozenset": lambda visit, content: frozenset(visit(content)),
    "deque": lambda visit, content: deque(visit(content[1]), content[0]),
    "namedtuple": _namedtuple,
    "complex": lambda _visit, content: complex(*content),
    "bytes": lambda _visit, content: base64.b64decode(content, validate=True),
    "dtype": _named_in_torch(torch.dtype),
    "device": _named_in_torch(torch.device),
    "numpy": _numpy,
    "array": lambda visit, content: visit(content).cpu().numpy().copy(),
    "spelled": lambda _visit, content: _spelled(*content),
    "text": lambda _visit, content: np.str_(content),
}


def retyped(saved: Any, live: Any) -> Any:
    """The saved state with the containers' types of `live`, that of an object just made.

    An earlier evertrain saved every container as a dict, a list or a tuple.
    """
    if type(saved) is dict and isinstance(live, dict):
        found = {key: retyped(item, live.get(key)) for key, item in saved.items()}
        if isinstance(live, defaultdict):
            return defaultdict(live.default_factory, found)
        return type(live)(found) if type(live) in (OrderedDict, Counter) else found
    if type(saved) in (list, tuple) and isinstance(live, type(saved)) and _fit(saved, live):
        items = [retyped(*pair) for pair in zip(saved, live, strict=True)]
        return type(live)(*items) if _fields(type(live)) else type(live)(items)
    return saved


def _fit(saved: Any, live: Any) -> bool:
    return len(saved) == len(live)


def first_difference(saved: Any, found: Any, *, path: str = "") -> str:
    """What of a state another one lacks or has with another value; empty if it has all of it."""
    if isinstance(saved, Tensor) and isinstance(found, Tensor):
        return "" if _are_equal(saved, found) else f"{path}: other values"
    if isinstance(saved, dict) and isinstance(found, dict):
        # A newer version of a library may have added an option, with its default.
        if lost := sorted(map(str, saved.keys() - found.keys())):
            return f"{path or 'the state'} has no {lost[0]!r}"
        pairs = [(f"{path}/{key}".lstrip("/"), saved[key], found[key]) for key in saved]
    elif type(saved) is type(found) and isinstance(saved, (list, tuple, deque)):
        if not _fit(saved, found):
            return f"{path}: {len(saved)} and {len(found)} elements"
        if isinstance(saved, deque) and saved.maxlen != found.maxlen:
            return f"{path}: a deque of at most {saved.maxlen} and of at most {found.maxlen}"
        pairs = [
            (f"{path}/{number}", *pair)
            for number, pair in enumerate(zip(saved, found, strict=True))
        ]
    elif _is_users_object(saved) and type(saved) is type(found):
        pairs = [
            (f"{path}.{name}", value, vars(found).get(name)) for name, value in vars(saved).items()
        ]
    elif isinstance(saved, np.ndarray) and isinstance(found, np.ndarray):
        is_same = saved.dtype == found.dtype and saved.tobytes() == found.tobytes()
        return "" if is_same else f"{path}: other values"
    else:
        return "" if _is_same(saved, found) else f"{path}: {saved!r:.60} and {found!r:.60}"
    return next((said for name, *two in pairs if (said := first_difference(*two, path=name))), "")


def _is_users_object(value: Any) -> bool:
    """Whether it is an object of a class of the user's, which is what its attributes are."""
    return hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value)


def _is_same(saved: Any, found: Any) -> bool:
    if isinstance(saved, float) and isinstance(found, float) and math.isnan(saved):
        return math.isnan(found)
    return bool(type(saved) is type(found) and saved == found)


def _are_equal(saved: Tensor, found: Tensor) -> bool:
    if saved.dtype != found.dtype or saved.shape != found.shape:
        return False
    if is_distributed(saved) and is_distributed(found):
        saved, found = saved.to_local(), found.to_local()
    saved = saved.detach().to(found.device)
    if torch.equal(saved, found):
        return True
    if not (saved.is_floating_point() or saved.is_complex()):
        return False
    # NaN equals no other one.
    return bool(
        torch.equal(saved.isnan(), found.isnan())
        and torch.equal(saved.nan_to_num(), found.nan_to_num())
    )
