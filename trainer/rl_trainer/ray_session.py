"""Ray, started quietly here or joined at RAY_ADDRESS."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rl_api.errors import DeadlineExceeded

# Read by Ray when it is imported or started: no usage reports, no advice on standard error.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_raylet_start_wait_time_s": "120",
}


@contextmanager
def ray_session(cpus: float, *, debug: bool = False) -> Iterator[None]:
    """Joins the cluster at RAY_ADDRESS, or starts Ray on this machine for the length of the block.

    Args:
        cpus: CPU cores that the run's actors ask for. A local Ray offers at least as many: on a small machine
            they share cores instead of waiting for ones that never come.
        debug: show Ray's own log lines.

    Raises:
        DeadlineExceeded: no cluster answers at RAY_ADDRESS.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    level = logging.INFO if debug else logging.ERROR
    address = os.environ.get("RAY_ADDRESS")
    options = {"log_to_driver": debug, "logging_level": level, "configure_logging": True}
    try:
        if address:
            ray.init(address=address, **options)
        else:
            cores = os.cpu_count() or 1
            ray.init(num_cpus=max(cores, math.ceil(cpus)), include_dashboard=False, **options)
    except (ConnectionError, TimeoutError) as error:
        raise DeadlineExceeded(
            f"RAY_ADDRESS={address}: no Ray cluster answers there ({error}); start one or unset RAY_ADDRESS"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
