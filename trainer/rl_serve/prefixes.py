"""Which replica answers a prompt: those that begin alike go to one that has computed their beginning before. Pure.

Nothing is remembered: all proxies of a service find the same replica for a key, and keep doing so when replicas come and go.
The order is that of rendezvous hashing (Thaler, Ravishankar 1998), with bounded loads (Mirrokni, Thorup, Zadimoghaddam,
https://arxiv.org/abs/1608.01350): a replica that has more than its share is passed over.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

# Characters of a prompt that say which others begin alike. A conversation is known by its first question, whatever follows.
_CHARACTERS: Final = 256
# More is not looked at: such a request goes to any replica.
MOST_BYTES: Final = 2**20
# A replica may have so many times the mean, and so many more: an engine takes some more into its batch at no great cost.
_FACTOR, _MORE = 1.25, 4

R = TypeVar("R")


def key_of(body: bytes) -> str | None:
    """What a request's prompt has in common with those that begin alike; None: nothing can be said.

    `body` is a chat's or a completion's. Its `prompt_cache_key` says it where there is one, as with OpenAI; else a chat's
    first message of a user's, or how the (first) prompt begins.
    """
    try:
        asked = json.loads(body)
        if not isinstance(asked, dict):
            return None
        named = asked.get("prompt_cache_key")
        begins = named if isinstance(named, str) and named else _beginning(asked)
    except (ValueError, RecursionError):
        return None  # the replica says what is wrong with it
    if not begins:
        return None
    return hashlib.blake2b(begins.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def ranked(key: str, loads: Mapping[R, int], name: Callable[[R], str]) -> list[R]:
    """Replicas, that of the prompts with this key first; those with more than their share of `loads` come last.

    Args:
        key: of the request.
        loads: requests that each replica has now.
        name: what a replica is known by, in all proxies.
    """
    if not loads:
        return []
    share = math.ceil(_FACTOR * (sum(loads.values()) + 1) / len(loads)) + _MORE
    order = sorted(loads, key=lambda replica: _weight(key, name(replica)), reverse=True)
    within = [replica for replica in order if loads[replica] < share]
    beyond = [replica for replica in order if loads[replica] >= share]
    return within + sorted(beyond, key=loads.__getitem__)


def _weight(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}/{name}".encode(), digest_size=8).digest()


def _beginning(asked: Mapping[str, Any]) -> str:
    messages, prompt = asked.get("messages"), asked.get("prompt")
    if isinstance(messages, list):
        said = [one for one in messages if isinstance(one, dict)]
        first = next((one for one in said if one.get("role") == "user"), said[0] if said else {})
        return _text(first.get("content"))
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    return _text(prompt)


def _text(content: Any) -> str:
    """The first characters of a text, of a message's parts, or of token ids."""
    if isinstance(content, str):
        return content[:_CHARACTERS]
    if not isinstance(content, list) or not content:
        return ""
    return json.dumps(content[:_CHARACTERS])[:_CHARACTERS]
