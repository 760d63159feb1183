"""Measure one GPU: hashes, rounds, sharing, utilisation. In parts of at most 8 minutes, 25 minutes together.

    python -m benchmarks.gpu_day                       # all parts whose file is missing
    python -m benchmarks.gpu_day --part sharing        # one part, again
    python -m benchmarks.gpu_day --device cpu --tiny   # tests the code without a GPU

Each part writes one file `gpu-PART.json`; a later call goes on with the parts that have none. `python -m
benchmarks.table` writes docs/performance.md's GPU part from them. Images are synthetic, of CIFAR's shape. Plain
processes stand for Ray's actors. Only the standard library is imported before what else is needed is looked for.
"""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
NEEDED = {
    "numpy": "numpy",
    "pydantic": "pydantic",
    "safetensors": "safetensors",
    "torch": "torch",
    "torchvision": "torchvision",
    "yaml": "pyyaml",
}
"""Modules that the numerics import -> their names for pip."""
MINUTES = {"hashes": 8.0, "fl-sam": 4.0, "pfl": 2.0, "table1": 3.0, "sharing": 8.0}
"""Part -> its limit."""


def main() -> int:
    """Run the parts that are asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_day", description="Measure one GPU, part by part.")
    parser.add_argument("--part", choices=MINUTES, help="this part only, also if its file exists")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="smallest sizes, to test the code")
    parser.add_argument("--out", type=Path, help="folder of the files; benchmarks/results, if tiny .fedray/bench")
    asked = parser.parse_args()
    folder = asked.out or ROOT / (".fedray/bench" if asked.tiny else "benchmarks/results")
    if missing := [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]:
        print(f"not installed: {', '.join(missing)}; pip install {' '.join(missing)}", file=sys.stderr)
        return 2
    if asked.device == "cuda" and not _sees_gpu():
        print("--device cuda: not measured: torch sees no CUDA device here", file=sys.stderr)
        return 2
    from benchmarks.gpu_day.parts import run_part

    for part in [asked.part] if asked.part else MINUTES:
        file = folder / f"gpu-{part}.json"
        if asked.part is None and file.exists():
            print(f"{part}: {file} exists", flush=True)
            continue
        run_part(part, asked.device, asked.tiny, 60 * MINUTES[part], file)
    return 0


def _sees_gpu() -> bool:
    """Ask another process, so that this one holds no memory of the GPU before it measures."""
    command = [sys.executable, "-c", "import torch, sys; sys.exit(not torch.cuda.is_available())"]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
