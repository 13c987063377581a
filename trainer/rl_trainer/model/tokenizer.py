"""Text to token ids and back, from a model folder's `tokenizer.json`; the library is imported for chat templates only."""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_api.errors import ModelError
from rl_trainer.model.config import read_json

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """A folder's tokenizer; get one from `load_tokenizer`.

    `stop_ids` are the ids that end a completion (from generation_config.json, config.json and
    tokenizer_config.json), `pad_id` fills padded batches, `vocab_size` counts the ids the tokenizer knows (a
    model's may be larger), `longest` is how many characters a token stands for at most (None: any number),
    `where` begins the sentences of its errors.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        stop_ids: frozenset[int],
        pad_id: int,
        chat_template: str | Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        where: str = "tokenizer",
    ) -> None:
        self._backend = backend
        self._chat_template = chat_template
        self._special_tokens = dict(special_tokens or {})
        self.where = where
        self.stop_ids = stop_ids
        self.pad_id = pad_id
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        description = json.loads(backend.to_str())
        self._missing_bytes = _missing_bytes(description)
        self.longest = _longest(description)
        added = sorted((one["content"] for one in description["added_tokens"]), key=len, reverse=True)
        # Those that begin at each place of a text, the longest; also where one overlaps another.
        self._added = re.compile(f"(?=({'|'.join(map(re.escape, added))}))") if added else None
        # Of a single character, which nothing can break.
        self._marks = {
            one["content"]
            for one in description["added_tokens"]
            if one["special"] and len(one["content"]) == 1
        }
        # Nobody can write them who does not know them; of letters and digits, which no chat template changes.
        self._break, self._plain = (f"q{secrets.token_hex(16)}q" for _ in range(2))

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` uses the model's own template."""
        return self._chat_template is not None

    def quoted(self, text: str, spans: Sequence[tuple[int, int]] | None = None) -> str:
        """`text`, for `encode` and `encode_chat` of this tokenizer alone, which read what others wrote in it as ordinary
        text: nothing in there becomes a special token, or another one of several characters that was added to the
        vocabulary. What cannot be told apart from one that ends a text or turn is refused by `encode`.

        Args:
            text: of any origin.
            spans: places (begin, end) of what others wrote; None: all of it.
        """
        spans = [(0, len(text))] if spans is None else spans
        found = self._added.finditer(text) if self._added else ()
        # An added token is found in whole text only.
        edges = {
            one.start() + 1: self._break
            for one in found
            if len(one[1]) > 1 and any(a < one.start() + len(one[1]) and one.start() < b for a, b in spans)
        }
        for a, b in spans if self._marks else ():
            for place in range(a, b):
                if text[place] in self._marks:
                    edges[place] = self._break + self._plain
                    edges.setdefault(place + 1, self._break)
        places = sorted(edges)
        parts = (edges[a] + text[a:b] for a, b in itertools.pairwise([*places, len(text)]))
        return text[: min(places, default=len(text))] + "".join(parts)

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with the tokens the model puts around a text (such as Llama's begin-of-text) if wanted.

        Raises ModelError when the tokenizer has no token for a character, or, for one that is quoted, none but that which
        ends a text or turn.
        """
        parts = text.split(self._break)
        text = "".join(part.removeprefix(self._plain) for part in parts)
        if self._missing_bytes:
            for character in text:
                if not self._missing_bytes.isdisjoint(character.encode("utf-8", "replace")):
                    raise ModelError(
                        f"{self.where}: there is no token for the character {character!r} (U+{ord(character):04X}); "
                        "take it out of the text or use a model that knows it"
                    )
        try:
            if len(parts) == 1:
                return list(self._backend.encode(text, add_special_tokens=special_tokens).ids)
            from tokenizers import Encoding

            pieces = [self._piece(part) for part in parts if part]
            whole = Encoding.merge(pieces, growing_offsets=True)
            return list(self._backend.post_process(whole, None, special_tokens).ids)
        except ModelError:
            raise
        except Exception as error:  # the tokenizers package raises plain Exception
            raise ModelError(f"{self.where}: the text {text[:40]!r} cannot be encoded ({error})") from None

    def _piece(self, part: str) -> tokenizers.Encoding:
        """Of a part of a text that is quoted."""
        if not part.startswith(self._plain):
            return self._backend.encode(part, add_special_tokens=False)
        character = part.removeprefix(self._plain)
        found = self._unmarked.encode(character, add_special_tokens=False)
        token = self._backend.token_to_id(character)
        if token in found.ids and (token in self.stop_ids or character in self._written):
            raise ModelError(
                f"{self.where}: the character {character!r} (U+{ord(character):04X}) ends a text or turn, and there is no "
                "other token for it; take it out of the text or use a model that tells them apart"
            )
        return found

    @cached_property
    def _written(self) -> str:
        """What the chat template writes around a message."""
        if not self.has_chat_template:
            return ""
        return self.render_chat([{"role": "user", "content": self._break}]).replace(self._break, "")

    @cached_property
    def _unmarked(self) -> tokenizers.Tokenizer:
        """The same, without special tokens."""
        from tokenizers import Tokenizer

        found = Tokenizer.from_str(self._backend.to_str())
        found.encode_special_tokens = True
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens (end of text, padding) left out."""
        return str(self._backend.decode([int(token) for token in ids], skip_special_tokens=True))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """Messages ({"role", "content"}) as the model's chat template writes them, with the library's `apply_chat_template`.

        Without a template: the contents, one per line. Raises ModelError when the template refuses the messages.
        """
        if self._chat_template is None:
            return "\n".join(message["content"] for message in messages)
        from jinja2 import TemplateSyntaxError

        try:
            return str(
                self._library.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=[dict(tool) for tool in tools] or None,
                    add_generation_prompt=add_generation_prompt,
                    tokenize=False,
                    **template_kwargs,
                )
            )
        except TemplateSyntaxError as error:
            raise ModelError(f"{self.where}: the chat template does not compile ({error})") from None
        except Exception as error:  # whatever a template does with what it is given
            roles = [message.get("role") for message in messages]
            raise ModelError(
                f"{self.where}: the chat template refuses messages of roles {roles} ({error})"
            ) from None

    def encode_chat(self, messages: Sequence[Mapping[str, str]], **options: Any) -> list[int]:
        """Token ids of `render_chat`; a template writes its own special tokens, so none are added then."""
        return self.encode(self.render_chat(messages, **options), special_tokens=self._chat_template is None)

    @cached_property
    def _library(self) -> Any:
        from transformers import PreTrainedTokenizerFast  # slow, and only for models with a template

        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=self._backend, chat_template=self._chat_template, **self._special_tokens
        )


def byte_letter(value: int) -> str:
    """The printable letter that stands for a byte in byte-level vocabularies (GPT-2's table): `A` for A, `Ġ` for a space."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if value in printable:
        return chr(value)
    return chr(256 + sum(1 for other in range(value) if other not in printable))


def _longest(description: Mapping[str, Any]) -> int | None:
    """Characters of the longest token. Of a byte-level BPE alone it is known that it leaves none out and joins none."""
    normalizer, model = description["normalizer"], description["model"]
    composed = normalizer is not None and normalizer["type"] == "NFC"
    split = json.dumps(description["pre_tokenizer"])
    if '"ByteLevel"' not in split or '"Removed"' in split or model["type"] != "BPE":
        return None
    if model.get("unk_token") or (normalizer is not None and not composed):
        return None
    added = [token for token in description["added_tokens"] if not (token["lstrip"] or token["rstrip"])]
    if len(added) < len(description["added_tokens"]):  # one that takes all spaces around it
        return None
    known = [*model["vocab"], *(token["content"] for token in added)]
    # NFC makes one character of up to four.
    return max(map(len, known), default=1) * (4 if composed else 1)


def _missing_bytes(description: Mapping[str, Any]) -> frozenset[int]:
    """Bytes that a byte-level BPE has no token for. It would drop them without a word, so `encode` looks first."""
    if '"ByteLevel"' not in json.dumps(description["pre_tokenizer"]) or description["model"].get("unk_token"):
        return frozenset()
    vocabulary = description["model"].get("vocab", {})
    return frozenset(value for value in range(256) if byte_letter(value) not in vocabulary)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Open the tokenizer of a model folder; ModelError when it is missing or broken.

    A folder with only a sentencepiece or vocab/merges tokenizer is converted by the library, which takes seconds.
    """
    import tokenizers

    folder = Path(folder)
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the tokenizers package raises plain Exception
            raise ModelError(f"model folder {folder}: tokenizer.json cannot be read ({error})") from None
    else:
        backend = _convert(folder)
    backend.no_padding()
    backend.no_truncation()
    config, generation = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "generation_config.json")
    )
    special = _special_tokens(config)
    model = read_json(folder / "config.json")

    stop = {*_ids(generation.get("eos_token_id")), *_ids(model.get("eos_token_id"))}
    text = special.get("eos_token")
    end = backend.token_to_id(text) if text else None
    if end is not None:
        stop.add(end)
    return Tokenizer(
        backend,
        stop_ids=frozenset(stop),
        pad_id=_pad_id(backend, special, model, stop),
        chat_template=_chat_template(folder, config),
        special_tokens=special,
        where=f"tokenizer of {folder}",
    )


def _convert(folder: Path) -> tokenizers.Tokenizer:
    """Let the library make a fast tokenizer of older files."""
    if not any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json", "vocab.txt")):
        raise ModelError(
            f"model folder {folder}: tokenizer.json is missing; save the tokenizer beside the model"
        )
    try:
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        backend: tokenizers.Tokenizer = loaded.backend_tokenizer
    except Exception as error:
        raise ModelError(
            f"model folder {folder}: tokenizer.json is missing, and the library cannot make one of the other files ({error})"
        ) from None
    return backend


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and so on as plain text; the file may hold them as objects."""
    found: dict[str, str] = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[key] = text
    return found


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


def _pad_id(
    backend: tokenizers.Tokenizer, special: Mapping[str, str], model: Mapping[str, Any], stop: set[int]
) -> int:
    token = backend.token_to_id(special["pad_token"]) if "pad_token" in special else None
    if token is not None:
        return int(token)
    configured = _ids(model.get("pad_token_id"))
    if configured and configured[0] >= 0:
        return configured[0]
    return min(stop, default=0)


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name: `default`, and `tool_use` where there are tools
        return {entry["name"]: entry["template"] for entry in template if isinstance(entry, dict)} or None
    return template if isinstance(template, str) else None
