"""`rltrain serve`: a policy behind OpenAI's interface, on this machine."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from rl_cli.options import Subparsers, new_parser, whole

_DESCRIPTION = """\
Serves a policy on this machine with OpenAI's interface: /v1/chat/completions, /v1/completions and /v1/models, streaming
included; /healthz answers 200 when it is ready. PATH is a run folder (its final policy, or the newest checkpoint; every
byte of a checkpoint is compared with its manifest), the folder of one checkpoint, a Hugging Face folder or hub id, or
s3://bucket/folder. Ctrl-C ends it at once."""

_EXAMPLES = """\
  rltrain serve runs/quickstart
  rltrain serve runs/quickstart --port 9000 --replicas 2
  rltrain serve Qwen/Qwen2.5-0.5B-Instruct --max-context 2048
  rltrain serve Qwen/Qwen2.5-7B-Instruct --engine vllm --tensor-parallel-size 2
  rltrain serve Qwen/Qwen2.5-7B-Instruct --engine vllm --prefill-replicas 1
  rltrain serve runs/quickstart --host 0.0.0.0 --api-key-file keys.txt
"""

# What Ray Serve needs besides Ray.
_NEEDED = ("torch", "ray", "fastapi", "starlette", "uvicorn")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "serve", _serve, _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "path", metavar="PATH", help="run folder, checkpoint, model folder, hub id or s3://..."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=whole(0, 65535), default=8000, help="port (default: 8000; 0: one that is free)"
    )
    parser.add_argument(
        "--replicas",
        type=whole(1, 1024),
        default=1,
        metavar="N",
        help="copies of the model that share the requests (default: 1)",
    )
    parser.add_argument(
        "--engine",
        choices=("torch", "vllm"),
        default="torch",
        help="inference engine: torch, or vllm where it is installed (default: torch)",
    )
    for name, what in (
        ("tensor", "devices that each layer of a copy is divided over"),
        ("pipeline", "stages that the layers of a copy are divided into"),
    ):
        parser.add_argument(
            f"--{name}-parallel-size",
            type=whole(1, 64),
            default=1,
            metavar="N",
            help=f"{what}, with --engine vllm (default: 1)",
        )
    parser.add_argument(
        "--prefill-replicas",
        type=whole(0, 1024),
        default=0,
        metavar="N",
        help="copies that compute long prompts for the others, with --engine vllm (default: 0)",
    )
    parser.add_argument(
        "--max-context",
        type=whole(2, 10_000_000),
        default=4096,
        metavar="TOKENS",
        help="longest prompt with its answer (default: 4096, or what the model holds)",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=whole(1, 10_000_000),
        default=1024,
        metavar="TOKENS",
        help="longest answer (default: 1024)",
    )
    parser.add_argument(
        "--queue",
        type=whole(0, 100_000),
        default=64,
        metavar="N",
        help="answers that may wait for a place, for each replica; more are refused with 429 (default: 64)",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="most time for a request; then it is answered with 504 (default: 300)",
    )
    parser.add_argument(
        "--model-name", default="", metavar="NAME", help="the model's name for clients (default: from PATH)"
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with API keys, one on each line (default: none)",
    )


def _serve(args: argparse.Namespace) -> int:
    for module in _NEEDED:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    from rl_serve.local import Options, serve_here

    return serve_here(
        Options(
            source=args.path,
            host=args.host,
            port=args.port,
            replicas=args.replicas,
            prefill_replicas=args.prefill_replicas,
            max_context=args.max_context,
            max_new_tokens=args.max_new_tokens,
            queue=args.queue,
            timeout=args.timeout,
            engine=args.engine,
            tensor_parallel_size=args.tensor_parallel_size,
            pipeline_parallel_size=args.pipeline_parallel_size,
            model_name=args.model_name,
            api_key_file=args.api_key_file,
            debug=args.debug,
        )
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"found {text}, allowed: seconds from 0.1 to 86400")
    return value
