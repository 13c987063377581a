"""Attempts that an operator up to 0.1 began: their token is random, and has to be read. Goes with the next release."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.names import Key, earlier_secret_name
from rl_operator.model.parse import is_owned
from rl_operator.render.config import TOKEN_KEY

_SENTENCE = "the driver is not asked, as an earlier version of the operator began this attempt, and its token {}; training"
_GOES_ON = "goes on, and the next attempt is as ever"


async def earlier_token(api: Api, key: Key, uid: str) -> tuple[str | None, str]:
    """The token in a run's Secret, and why there is none. The chart gives the right to read it only if it is told to."""
    name = earlier_secret_name(key[1])
    try:
        found = await api.find("Secret", key[0], name)
    except ApiError as error:
        if error.status != 403:
            raise
        return None, f"{_SENTENCE.format('may not be read (rbac.legacySecrets of the chart)')} {_GOES_ON}"
    data: Mapping[str, str] = (found or {}).get("data") or {}
    try:
        token = base64.b64decode(data.get(TOKEN_KEY, ""), validate=True).decode()
    except ValueError:
        token = ""
    if found is None or not token or not is_owned(found, uid):
        return None, f"{_SENTENCE.format(f'is not in its Secret {name} any more')} {_GOES_ON}"
    return token, ""
