"""TRL's GRPOTrainer with vLLM in the same process (its colocated mode) on the same GPU: same model, prompts, batch, lengths.

TRL is in an environment of its own; the trainer runs behind `bench/peer_trl.py`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from peers import BENCH, Worker

from gpu_lane.child import progress
from gpu_lane.job import Findings, Job, Skipped
from gpu_lane.learner import one_gpu
from gpu_lane.loop import write_prompts
from gpu_lane.shapes import SHAPES, Shape, context

REQUIREMENTS = (
    "trl[vllm]==1.16.0",
    "vllm==0.31.0",
    "transformers==5.17.0",
    "accelerate==1.15.0",
    "datasets==5.2.0",
    "peft>=0.21",
    "torch==2.13.0",
)
_IMPORT_SECONDS = 120.0
# Before the stage's deadline, to end TRL's process, which is in a group of its own.
_CLOSE_SECONDS = 25.0
_LORA = {
    "r": 16,
    "lora_alpha": 32,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}


def measure(job: Job) -> Findings:
    """One row."""
    needed = ("trl", "vllm") if job.device == "cuda" else ("trl",)
    versions = {package: _version(job.peer_python, package) for package in needed}
    for package, version in versions.items():
        if not version:
            raise Skipped(
                f"TRL: {package} is not installed for {job.peer_python or 'any interpreter that was named'}"
            )
    shape = SHAPES[job.shape]
    write_prompts(job)
    model = Path(job.scratch) / "peer-model"
    if not model.exists():
        model.symlink_to(job.model, target_is_directory=True)
    with Worker(
        f"gpu-lane-trl-{job.shape}",
        job.peer_python,
        BENCH / "peer_trl.py",
        job.scratch,
        "1",
        env=one_gpu(job, 0),  # of several it would take all, with a copy of the model on each
        start_timeout=_left(job),
    ) as worker:
        request = {
            "case": job.shape,
            "model": model.name,
            "maxNewTokens": shape.longest,
            "promptsPerStep": shape.prompts,
            "groupSize": shape.group,
            "config": _config(job, shape),
            "lora": _LORA if shape.lora else None,
            "deadline": job.deadline,
        }
        progress("TRL: the first step")
        worker({**request, "steps": 1}, _left(job))
        progress(f"TRL: {shape.steps} steps")
        found = worker({**request, "steps": shape.steps}, _left(job))
    row = {
        "peer": " + ".join(f"{package} {version}" for package, version in versions.items()),
        "completion tok/s": sum(found["lengths"]) / found["seconds"],
        "s/step": found["seconds"] / shape.steps,
        "highest of torch, GB": found["bytes"] / 1e9,
        "used on the device, GB": found["used"] / 1e9,
    }
    return Findings([row])


def _left(job: Job) -> float:
    return max(1.0, job.left - _CLOSE_SECONDS)


def _config(job: Job, shape: Shape) -> dict[str, Any]:
    """Fields of GRPOConfig beside those that `peer_trl.py` has for CPUs."""
    half = job.dtype == "bfloat16"
    # With LoRA the base learns nothing and needs no float32.
    base = "bfloat16" if half and shape.lora else "float32"
    found: dict[str, Any] = {
        "bf16": half,
        "gradient_checkpointing": shape.checkpointing,
        "model_init_kwargs": {"dtype": base},
    }
    if job.device == "cuda":
        whole, most = shape.prompts * shape.group, shape.micro_batch // context(shape)
        sequences = max(size for size in range(1, whole + 1) if whole % size == 0 and size <= max(1, most))
        found |= {
            "use_cpu": False,
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": shape.vllm_share,
            "vllm_max_model_length": context(shape),
            # As many tokens in a pass as ours has.
            "per_device_train_batch_size": sequences,
            "gradient_accumulation_steps": whole // sequences,
        }
    return found


def _version(python: str, package: str) -> str:
    """Of a package of another interpreter; empty where it has none."""
    if not python or shutil.which(python) is None:
        return ""
    asked = f"import importlib.metadata as found; print(found.version({package!r}))"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=_IMPORT_SECONDS)
    return done.stdout.strip() if done.returncode == 0 else ""
