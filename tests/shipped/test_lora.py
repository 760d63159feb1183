"""`sweeps/lora.yaml`: its forms of fine-tuning, and one small cell of each."""

import math
from typing import Any

import fedray
from fedray.config import RunConfig
from fedray.models.base import count_parameters
from fedray.sweep.file.points import with_key
from fedray.sweep.file.shipped import get_sweeps_folder
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.draws import iter_points


def forms(smoke: bool) -> dict[str, dict[str, Any]]:
    """Form -> a point of the sweep with it."""
    found = {}
    for point in iter_points(Sweep.load(get_sweeps_folder() / "lora.yaml", smoke=smoke)):
        lora = point["model"].get("lora", {})
        kept = "FedSA-LoRA" if "share" in lora else "FFA-LoRA" if "train" in lora else "LoRA"
        found[kept if lora else "head" if "freeze" in point["model"] else "all"] = point
    return found


def test_the_forms_and_what_they_train() -> None:
    """Rank 8 on the four linear layers of 12 blocks of width 192, with inputs of 192, 192, 192 and 768 numbers (A) and
    outputs of 576, 192, 768 and 192 (B); the head 193 x 100; all of ViT-Tiny, 100 classes instead of 1,000.
    """
    a, b, head = 12 * 8 * 1344, 12 * 8 * 1728, 193 * 100
    trained = {
        form: count_parameters(RunConfig.parse(with_key(point, "model.init", None)).model, (3, 224, 224), 100)[0]
        for form, point in forms(smoke=False).items()
    }
    assert trained == {
        "LoRA": a + b + head,
        "FFA-LoRA": b + head,
        "FedSA-LoRA": a + b + head,
        "all": 5_717_416 - 193_000 + head,
        "head": head,
    }


def test_a_small_cell_of_each_form() -> None:
    """LoRA sends A, B and the head; FFA-LoRA B and the head, FedSA-LoRA A and the head."""
    sent = {}
    for form, point in forms(smoke=True).items():
        point = with_key(with_key(point, "runtime.backend", "inline"), "training.rounds", 1)
        result = fedray.simulate(point)
        assert math.isfinite(result.history[-1]["test_loss"])
        sent[form] = result.summary()["megabytes_up"]
    assert sent["head"] < min(sent["FFA-LoRA"], sent["FedSA-LoRA"]) < sent["LoRA"] < sent["all"]
    assert math.isclose(sent["FFA-LoRA"] + sent["FedSA-LoRA"] - sent["head"], sent["LoRA"])
