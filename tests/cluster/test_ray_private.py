"""The parts of Ray and Tune beyond their public interfaces exist, and are used in one file only."""

import importlib
import re
from pathlib import Path

import pytest
import ray
from ray.tune.experiment import Trial

import fedray

NAMES = [
    "ray._private.services:get_ray_address_from_environment",
    "ray._private.utils:get_num_cpus",
    "ray._private.worker:_global_node",
    "ray._private.node:Node.kill_monitor",
    "ray._raylet:Config.initialize",
    "ray.job_config:JobConfig._runtime_env_has_working_dir",
    "ray.experimental.internal_kv:_internal_kv_del",
    "ray.experimental.internal_kv:_internal_kv_get",
    "ray.experimental.internal_kv:_internal_kv_put",
    "ray.tune.execution.class_cache:DEFAULT_ENV_VARS.clear",
    "ray.tune.execution.class_cache:ENV_VARS_TO_PROPAGATE.clear",
    "ray.tune.experiment:Trial.get_pickled_error",
    "ray.tune.experiment:Trial.update_resources",
    "ray.tune.schedulers:MedianStoppingRule._on_insufficient_samples",
]
OF_A_TRIAL = [
    "temporary_state.ray_actor",
    "run_metadata.num_failures",
    "run_metadata.last_result",
    "run_metadata.metric_analysis.clear",
    "run_metadata.metric_n_steps.clear",
]
PRIVATE = re.compile(
    r"(?<![a-z])_private\b|_raylet|internal_kv|class_cache|run_metadata|temporary_state|get_pickled_error|_on_insufficient"
    r"|_runtime_env_has"
)
FILE = "cluster/ray_private.py"


def refuse_missing(found: object, name: str, where: str) -> None:
    for part in name.split("."):
        if not hasattr(found, part):
            pytest.fail(
                f"Ray {ray.__version__} has no {where} any more; change fedray/{FILE}, or cap ray in requirements.txt "
                "below this version",
                pytrace=False,
            )
        found = getattr(found, part)


@pytest.mark.parametrize("name", NAMES)
def test_ray_has_the_name(name: str) -> None:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError:
        found = None
    refuse_missing(found, attribute, name)


@pytest.mark.parametrize("name", OF_A_TRIAL)
def test_a_trial_has_the_attribute(name: str) -> None:
    refuse_missing(Trial("nothing", stub=True), name, f"Trial.{name}")


def test_a_missing_name_is_told_in_one_line() -> None:
    with pytest.raises(pytest.fail.Exception, match=rf"^Ray {ray.__version__} has no ray.x:y any more; change fedray/"):
        refuse_missing(ray, "y", "ray.x:y")


def test_one_file_uses_private_names() -> None:
    folder = Path(fedray.__file__).parent
    using = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if PRIVATE.search(path.read_text())}
    assert using <= {FILE}
