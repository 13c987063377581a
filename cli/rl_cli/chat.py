"""`rltrain chat`: talk to a model behind OpenAI's interface, in the terminal."""

from __future__ import annotations

import argparse
import os
import sys

from rl_cli.openai_client import Message, Server
from rl_cli.options import Subparsers, new_parser

_DESCRIPTION = """\
Talks to a model behind any server with OpenAI's interface, such as `rltrain serve`. Each line is a turn, and the answer is
written while it comes; /quit or the end of the input ends the chat. Where the input is no terminal, the first turn that
fails ends it with exit code 1."""

_EXAMPLES = """\
  rltrain chat http://127.0.0.1:8000
  echo 'What is 2 + 2?' | rltrain chat http://127.0.0.1:8000 --temperature 0
  OPENAI_API_KEY=... rltrain chat https://models.example.com/v1 --model policy
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(subparsers, "chat", _chat, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("url", metavar="URL", help="the server's address, with or without /v1")
    parser.add_argument("--model", default="", metavar="NAME", help="model (default: the first one it lists)")
    parser.add_argument("--system", default="", metavar="TEXT", help="what the model is told first")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: the server's)")
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="0: the most likely answer (default: 1)"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="longest silence (default: 300)"
    )


def _chat(args: argparse.Namespace) -> int:
    from rl_api.errors import RLTrainError

    server = Server(args.url, os.environ.get("OPENAI_API_KEY", ""), args.timeout)
    model, version = server.first_model() if not args.model else (args.model, "")
    terminal = sys.stdin.isatty()
    _say(f"{model}{f', policy {version}' if version else ''}; /quit ends the chat")
    options = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    said: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    while True:
        line = _next_line(terminal)
        if line is None or line.strip() == "/quit":
            return 0
        if not line.strip():
            continue
        turn: Message = {"role": "user", "content": line}
        try:
            answer = _answer(server, model, [*said, turn], options, version)
        except RLTrainError as error:
            if not terminal:
                raise
            _say(str(error))  # the turn that failed is not part of the chat
            continue
        said += [turn, {"role": "assistant", "content": answer}]


def _answer(
    server: Server, model: str, messages: list[Message], options: dict[str, int | float | None], version: str
) -> str:
    """Writes the answer as it comes; all of it."""
    from rl_api.printable import printable_lines

    pieces = []
    try:
        for piece in server.stream(model, messages, options):
            pieces.append(piece.text)
            print(printable_lines(piece.text), end="", flush=True)
            if piece.version and piece.version != version:
                version = piece.version
                _say(f"policy {version}")
    finally:
        print(flush=True)
    return "".join(pieces)


def _next_line(terminal: bool) -> str | None:
    """One line of the user's, None at the end of the input. What is no UTF-8 in it is replaced."""
    if terminal:
        try:
            return input("> ")
        except EOFError:
            print()
            return None
    raw = sys.stdin.buffer.readline()
    return raw.decode("utf-8", "replace").rstrip("\r\n") if raw else None


def _say(text: str) -> None:
    """What is about the chat and no part of it, on standard error."""
    from rl_api.printable import printable

    print(f"rltrain: {printable(text)}", file=sys.stderr, flush=True)
