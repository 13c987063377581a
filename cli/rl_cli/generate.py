"""`rltrain generate`: a policy answers all rows of a file or folder."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from rl_api.errors import InvalidConfig
from rl_cli.generate_job import add_cluster_group, check_not_rendered, rendered
from rl_cli.options import Subparsers, new_parser, number, whole

_DESCRIPTION = """\
Answers every row of the input with a policy, on Ray Data: here, or on the Ray cluster at RAY_ADDRESS. The input is a .jsonl
or .parquet file or a folder of them, here or at s3://; a row has a column prompt (text, or token ids) or messages (a chat).
The output is a folder of parts that hold the input's rows in their order, each with all its columns and completion,
finish_reason, prompt_tokens, completion_tokens and error. A row that cannot be answered has an error in its answer's place.

Parts are there whole or not at all: whatever ends the command, the same one again goes on with what is missing, and every
row is in the output exactly once. What a row is answered depends on the policy, the options and the row alone.

With --render the command writes a RayJob that does the same on a cluster with KubeRay."""

_EXAMPLES = """\
  rltrain generate --model runs/quickstart --input prompts.jsonl --output answers
  rltrain generate --model runs/quickstart --input prompts.jsonl --output answers --temperature 0
  rltrain generate --model Qwen/Qwen2.5-0.5B-Instruct --input chats.parquet --output answers --n 4 --seed 7
  rltrain generate --model s3://bucket/policy --input s3://bucket/prompts --output s3://bucket/answers --replicas 8
  rltrain generate --render --claim disk --workers 4 --gpus 1 --cpus 8 --memory 64Gi \\
    --model /data/policy --input /data/prompts --output /data/answers | kubectl apply -f -
"""

# What Ray Data needs besides Ray.
_NEEDED = ("torch", "ray", "pandas", "pyarrow")
_MOST_STOPS, _LONGEST_STOP = 16, 200


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "generate", _generate, _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "--model",
        required=True,
        metavar="PATH",
        help="run folder, checkpoint, model folder, hub id or s3://...",
    )
    parser.add_argument(
        "--input", required=True, metavar="PATH", help="file or folder (.jsonl or .parquet), here or at s3://"
    )
    parser.add_argument("--output", required=True, metavar="FOLDER", help="folder, here or at s3://")
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--temperature",
        type=_temperature,
        default=1.0,
        metavar="T",
        help="0: the most likely token (default: 1)",
    )
    group.add_argument(
        "--top-p",
        type=number(1e-6, 1.0, "a number above 0, at most 1"),
        default=1.0,
        metavar="P",
        help="smallest set of tokens with this probability (default: 1, all)",
    )
    group.add_argument(
        "--top-k",
        type=whole(0, 1_000_000),
        default=0,
        metavar="K",
        help="most likely tokens (default: 0, all)",
    )
    group.add_argument(
        "--max-new-tokens",
        type=whole(1, 10_000_000),
        default=1024,
        metavar="TOKENS",
        help="longest answer (default: 1024)",
    )
    group.add_argument(
        "--max-context",
        type=whole(2, 10_000_000),
        default=4096,
        metavar="TOKENS",
        help="longest prompt with its answer (default: 4096, or what the model holds)",
    )
    group.add_argument(
        "--stop",
        type=_stop,
        action="append",
        default=[],
        metavar="TEXT",
        help="text that ends an answer and is no part of it; may be given several times",
    )
    group.add_argument(
        "--seed", type=whole(-(2**63), 2**63 - 1), default=0, help="of the random draws (default: 0)"
    )
    group.add_argument(
        "--n", type=whole(1, 1024), default=1, help="answers of each row; above 1 as lists (default: 1)"
    )
    group = parser.add_argument_group("rows")
    for name, default, text in (
        ("prompt", "prompt", "column with a text or token ids (default: prompt)"),
        ("messages", "messages", "column with a chat (default: messages)"),
    ):
        group.add_argument(f"--{name}-column", type=_name, default=default, metavar="NAME", help=text)
    group.add_argument(
        "--added-prefix",
        default="",
        metavar="TEXT",
        help="what the added columns' names begin with (default: nothing)",
    )
    group.add_argument("--format", choices=("jsonl", "parquet"), help="of the output (default: the input's)")
    group.add_argument(
        "--part-rows",
        type=whole(1, 10_000_000),
        metavar="N",
        help="rows of each file of the output (default: about a thousand files, 64 to 4096 rows each)",
    )
    parser.add_argument(
        "--replicas",
        type=whole(1, 1024),
        metavar="N",
        help="copies of the model, each with a GPU where there are as many (default: 1; with --render as many as GPUs, or "
        "workers)",
    )
    parser.add_argument(
        "--slots",
        type=whole(1, 4096),
        metavar="N",
        help="answers that each copy writes at once; more need more memory (default: 64, with a GPU 128)",
    )
    parser.add_argument("--plain", action="store_true", help="plain lines in place of the live view")
    add_cluster_group(parser)


def _generate(args: argparse.Namespace) -> int:
    if len(args.stop) > _MOST_STOPS:
        raise InvalidConfig(f"--stop: found {len(args.stop)} texts, allowed: at most {_MOST_STOPS}")
    if args.render:
        sys.stdout.write(rendered(args))
        return 0
    check_not_rendered(args)
    for module in _NEEDED:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    from rl_generate.job import Options
    from rl_generate.local import Job, generate_here
    from rl_generate.rows import Columns

    return generate_here(
        Job(
            model=args.model,
            input=args.input,
            output=args.output,
            options=Options(
                temperature=args.temperature,
                top_p=args.top_p,
                top_k=args.top_k,
                max_new_tokens=args.max_new_tokens,
                max_context=args.max_context,
                stop=tuple(args.stop),
                seed=args.seed,
                n=args.n,
                columns=Columns(args.prompt_column, args.messages_column, args.added_prefix),
            ),
            format=args.format,
            part_rows=args.part_rows,
            replicas=args.replicas or 1,
            slots=args.slots,
            plain=args.plain,
            debug=args.debug,
        )
    )


def _temperature(text: str) -> float:
    allowed = "0 (the most likely token), or 0.01 to 2"
    value = number(0.0, 2.0, allowed)(text)
    if 0 < value < 0.01:
        raise argparse.ArgumentTypeError(f"found {text}, allowed: {allowed}")
    return value


def _stop(text: str) -> str:
    if not 0 < len(text) <= _LONGEST_STOP:
        raise argparse.ArgumentTypeError(f"found {len(text)} characters, allowed: 1 to {_LONGEST_STOP}")
    return text


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("found nothing, allowed: the name of a column")
    return text
