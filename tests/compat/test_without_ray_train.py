"""An installation in which no process can import Ray Train; and who imports it where it is."""

from __future__ import annotations

import ast
import sysconfig
import venv
from importlib import import_module
from pathlib import Path

import pytest
from torch import nn

import train_core
from tests import commands
from tests.rank.tiny import Tiny

PRODUCT = Path(train_core.__file__).parent
ROOT = Path(__file__).parents[2]
REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] == ["ray", "train"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""
WORKLOAD = """
import sys
from tests.asked import evaluate, train
from train_core import TrainConfig
from train_core.client.driver_handle import Driver
from train_core.requests import DriverRequest

workload = "tests.compat.test_without_ray_train:Alone"
config = TrainConfig(workload=workload, batch_size=32, epochs=2, num_workers=2)
request = DriverRequest(storage=sys.argv[1], run="workload", config=config)
with Driver.start(request, print) as driver:
    assert driver.prepared().total_steps
    result = train(driver)
    (measured,) = evaluate(driver, [result.checkpoints[-1]], "test")
print(f"trained {result.epoch} epochs, measured {measured.num_samples} samples")
"""
FUNCTION = """
import sys
from tests.ranks.without_ray import stages_without_ray
from train_core import TrainConfig
from train_core.requests import DriverRequest

config = TrainConfig(train_fn="tests.compat.functions.digits_function:train_digits")
try:
    stages_without_ray(
        DriverRequest(storage=sys.argv[1], run="function", config=config)
    ).prepare()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


class Alone(Tiny):
    """Sees for itself, in the driver and in each worker, that Ray Train cannot be imported."""

    def model(self) -> nn.Module:
        with pytest.raises(ModuleNotFoundError, match=r"ray\.train"):
            import_module("ray.train")
        return super().model()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of such an installation: all processes that it starts are of it, too."""
    place = tmp_path_factory.mktemp("without-ray-train")
    venv.create(place, symlinks=True)
    own = sysconfig.get_path("purelib", vars={"base": str(place)})
    Path(own, "refuse_ray_train.py").write_text(REFUSE)
    begin = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    Path(own, "as_here.pth").write_text(f"{begin}; import refuse_ray_train\n")
    return place / "bin/python"


def run(python: Path, code: str, storage: Path) -> str:
    """What the code prints."""
    command = [python, "-c", code, str(storage)]
    ended = commands.succeed(command, cwd=ROOT)
    return ended.stdout


@pytest.mark.slow
@pytest.mark.promise("without-ray-train")
@pytest.mark.timeout(240)
def test_a_workload_is_trained_and_evaluated_where_ray_train_cannot_be_imported(
    python: Path, tmp_path: Path
) -> None:
    shown = run(python, WORKLOAD, tmp_path)
    assert shown.splitlines()[-1] == "trained 2 epochs, measured 40 samples"


@pytest.mark.promise("without-ray-train")
def test_a_training_function_is_refused_in_one_line_that_names_ray_train(
    python: Path, tmp_path: Path
) -> None:
    shown = run(python, FUNCTION, tmp_path)
    assert shown.splitlines()[-1] == (
        "ConfigError: training function tests.compat.functions.digits_function:train_digits needs "
        "Ray Train, which cannot be imported (ModuleNotFoundError: No module named 'ray.train'): "
        "pip install 'ray[train]'"
    )
    assert not list(tmp_path.iterdir())


def test_only_the_room_of_training_functions_imports_ray_train() -> None:
    users = {
        path.relative_to(PRODUCT).parts[0]
        for path in PRODUCT.rglob("*.py")
        if "ray.train" in imported(ast.parse(path.read_text()))
    }
    assert users == {"functions"}


def imported(tree: ast.Module) -> set[str]:
    """The modules of Ray that the code imports, in two words, types aside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return {".".join(name.split(".")[:2]) for name in found}
