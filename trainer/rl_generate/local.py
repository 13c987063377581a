"""`rltrain generate`: all rows of the input, until they are done or a signal comes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rl_api.errors import DeadlineExceeded, InvalidConfig
from rl_api.printable import printable
from rl_api.progress import WORKERS_VARIABLE
from rl_generate.encoding import Format
from rl_generate.job import Options, manifest, rows_of_a_part
from rl_generate.output import SUMMARY, Folder, begin, done_parts, name_of, open_folder
from rl_generate.progress import Meter, Progress
from rl_generate.source import Part, Source, open_source
from rl_serve.policy import Policy, engine_threads, find_policy, models_cache
from rl_trainer.observe.texts import duration, number
from rl_trainer.run.ray_session import ray_session
from rl_trainer.run.stopping import StopRequest
from rl_trainer.storage.files import dump_json

# Nodes for new pods may have to be made first.
_WORKERS_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Job:
    """What the command line says.

    Attributes:
        model: as for `rltrain serve`.
        input, output: places.
        options: of every row.
        format: of the output, None: that of the input.
        part_rows: None: chosen by the number of rows.
        replicas: engines.
        slots: sequences that each generates at once, None: chosen.
        plain: no live view.
        debug: show Ray's own lines.
    """

    model: str
    input: str
    output: str
    options: Options
    format: Format | None
    part_rows: int | None
    replicas: int
    slots: int | None
    plain: bool
    debug: bool


@dataclass
class _Count:
    """What is done so far."""

    rows: int
    parts: int = 0
    done: int = 0
    errors: int = 0


def generate_here(job: Job) -> int:
    """Generate until all is done, or SIGINT or SIGTERM comes; the exit status, 0 or 128 plus the signal's number.

    Raises:
        InvalidConfig, ModelError, CheckpointError, RunFolderBusy: the options, or what they name, cannot be used.
        DeadlineExceeded: Ray or the engines do not come up.
        ActorDied: they have ended by themselves.
    """
    count = _Count(0)
    with StopRequest() as stop:
        try:
            _generate(job, count)
        except (KeyboardInterrupt, Exception):
            # What a signal interrupts inside Ray may come out as another error, or as a KeyboardInterrupt of Ray's own.
            if stop.signal is None:
                raise
        if stop.signal is None:
            return 0
        kept = (
            f"; {count.done:,} of {count.rows:,} rows are in {job.output}, and the same command goes on"
            if count.rows
            else ""
        )
        print(f"rltrain: stopped{printable(kept)}", file=sys.stderr)
        return stop.exit_code


def _generate(job: Job, count: _Count) -> None:
    began = time.monotonic()
    folder = open_folder(job.output)
    try:
        _tell(f"reading {job.input}")
        source = open_source(job.input)
        _check_columns(job, source)
        policy = find_policy(job.model, models_cache(), _tell)
        format = job.format or source.kind
        size = job.part_rows or rows_of_a_part(source.rows)
        parts = source.parts(size)
        wanted = manifest(
            job.options,
            input=source.fingerprint,
            rows=source.rows,
            model=policy.version,
            format=format,
            part_rows=size,
        )
        schema = source.schema() if format == "parquet" else None
        resumed = begin(folder, job.output, wanted)
        found = done_parts(folder, parts, job.options.columns, format) if resumed else {}
        left = [part for part in parts if part.number not in found]
        count.rows, count.errors = source.rows, sum(found.values())
        count.done, count.parts = source.rows - sum(part.rows for part in left), len(parts)
        if resumed and not left:
            _tell(
                f"all {source.rows:,} rows are in {job.output} already{_errors(count)}; there is nothing to do"
            )
            return
        if resumed:
            _tell(f"going on with {count.done:,} of {source.rows:,} rows done")
        tokens = 0
        if left:
            tokens = _run(job, count, folder, source, left, policy, format, schema)
        seconds = time.monotonic() - began
        summary = {
            "rows": count.rows,
            "errors": count.errors,
            "parts": count.parts,
            "policy": policy.version,
            "tokens_of_this_start": tokens,
            "seconds_of_this_start": round(seconds, 1),
        }
        folder.write(SUMMARY, (dump_json(summary, indent=2) + "\n").encode())
        speed = f", {number(tokens / seconds, 1)} tokens/s over all" if tokens else ""
        _tell(
            f"{count.rows:,} rows are in {job.output}{_errors(count)}: policy {policy.version}, "
            f"{duration(seconds)}{speed}".replace("\u2009", " ")
        )
    finally:
        folder.close()


def _run(
    job: Job,
    count: _Count,
    folder: Folder,
    source: Source,
    left: list[Part],
    policy: Policy,
    format: Format,
    schema: Any,
) -> int:
    """Answer the parts that are left; the tokens that were sampled for them."""
    # A thread of Ray Data's that still asks when all has ended would start another Ray.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    if not job.debug:
        # Ray's C++ part would write to the terminal about actors that can be replaced.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    _tell("starting Ray")
    with ray_session(job.replicas, debug=job.debug, leave=lambda: None):
        # Only now: Ray reads its settings from the environment when it is imported.
        import ray

        from rl_generate.pipeline import SLOTS, Pipeline, Setup
        from rl_trainer.model.shared_folder import share_folder

        _tell(f"loading the model{f' in {job.replicas} engines' if job.replicas > 1 else ''}")
        wait_for_workers(ray.nodes)
        there = ray.cluster_resources()
        gpu = int(there.get("GPU", 0)) >= job.replicas
        setup = Setup(
            model=share_folder(policy.folder.resolve()),
            options=job.options,
            format=format,
            schema=schema,
            slots=job.slots or SLOTS["cuda" if gpu else "cpu"],
            threads=engine_threads(policy, job.replicas, int(there.get("CPU", 0))),
            gpu=gpu,
        )
        tokens, meter = 0, Meter(source.rows, count.done)
        with (
            Pipeline(source, left, setup, job.replicas, debug=job.debug) as pipeline,
            Progress(policy.name, meter, plain=job.plain) as progress,
        ):
            for done in pipeline.done():
                look = pipeline.look()
                if done is not None:
                    folder.write(name_of(done.number, format), done.content)
                    count.done, count.errors = count.done + done.rows, count.errors + done.errors
                    tokens += done.tokens
                meter.update(min(count.rows, count.done + look.rows), look.tokens)
                progress.show()
        return tokens


def wait_for_workers(nodes: Callable[[], list[dict[str, Any]]]) -> None:
    """Returns when as many of Ray's `nodes` offer CPUs as `WORKERS_VARIABLE` says: with fewer, engines would
    do without GPUs.

    Raises:
        DeadlineExceeded: they do not come.
    """
    wanted, deadline = int(os.environ.get(WORKERS_VARIABLE) or 0), time.monotonic() + _WORKERS_SECONDS
    while wanted:
        found = sum(one["Alive"] and one["Resources"].get("CPU", 0) > 0 for one in nodes())
        if found >= wanted:
            return
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"{found} of {wanted} workers have joined Ray within {_WORKERS_SECONDS:.0f} s; is there room "
                "for all of them?"
            )
        time.sleep(_LOOK_SECONDS)


def _check_columns(job: Job, source: Source) -> None:
    """Before anything is generated: nothing is overwritten, and there is something to ask."""
    columns, found = job.options.columns, source.columns()
    if taken := [name for name in columns.added if name in found]:
        raise InvalidConfig(
            f"--input {job.input}: has a column {taken[0]} already, which is what rltrain generate adds; "
            "--added-prefix TEXT gives ours other names"
        )
    if found and columns.prompt not in found and columns.messages not in found:
        names = ", ".join(printable(name, 40) for name in found[:8])
        raise InvalidConfig(
            f"--input {job.input}: found columns {names}, allowed: one named {columns.prompt} or {columns.messages} "
            "(--prompt-column, --messages-column)"
        )


def _errors(count: _Count) -> str:
    return f", {count.errors:,} of them with an error" if count.errors else ""


def _tell(text: str) -> None:
    print(printable(text), flush=True)
