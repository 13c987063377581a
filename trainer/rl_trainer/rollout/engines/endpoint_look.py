"""What a server is, before the first prompt, and whether it is there."""

from __future__ import annotations

import time

from rl_api.errors import DeadlineExceeded, EndpointError, ModelError, RLTrainError
from rl_trainer.rollout.engines.endpoint_client import EndpointClient, ServerLost
from rl_trainer.rollout.engines.endpoint_names import FREE, Names
from rl_trainer.rollout.engines.endpoint_requests import (
    FIELD,
    PROBE_TEMPERATURES,
    ServerFacts,
    check_logprobs,
    probe_body,
    served_model,
    weight_label,
)

# Between two looks whether a server is there.
LOOK_SECONDS = 0.5
# For each of the two questions with which a server is given back: its run is over.
GIVE_BACK_SECONDS = 5.0


def everywhere(client: EndpointClient, method: str, **arguments: str) -> None:
    """Call a method of all the server's workers."""
    client.call("POST", "/collective_rpc", {"method": method, "kwargs": arguments})


def _is_extended(client: EndpointClient) -> bool:
    """Whether the server's workers have our methods; the others answer that there is no such one."""
    try:
        everywhere(client, "rltrain_measure_all_tokens")
    except ServerLost:
        client.call("GET", "/health")
        return False
    return True


def wait_until_there(client: EndpointClient, deadline: float) -> None:
    """Returns when the server answers that it is well; DeadlineExceeded when it does not until then."""
    while True:
        try:
            client.call("GET", "/health")
            return
        except ServerLost as error:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"server {client.url}: not there within {FIELD}.timeout ({client.timeout:.0f} s): {error}"
                ) from None
        time.sleep(LOOK_SECONDS)


def look_at(client: EndpointClient, names: Names, vocabulary: int, end: int) -> ServerFacts:
    """What a server is, once it is there; see `_check_vocabulary` for `vocabulary` and `end`."""
    wait_until_there(client, time.monotonic() + client.timeout)
    try:
        model, context = served_model(client.url, client.call("GET", "/v1/models"))
        check_free(client, names)
        _resume_own(client, names)
        _check_vocabulary(client, model, vocabulary, end)
        probes = [probe_body(model, vocabulary - 1, one) for one in PROBE_TEMPERATURES]
        check_logprobs(client.url, [client.call("POST", "/v1/completions", probe) for probe in probes])
        return ServerFacts(model, context, _is_extended(client))
    except ServerLost as error:
        raise EndpointError(f"server {client.url}: lost while it was looked at ({error})") from None


def _resume_own(client: EndpointClient, names: Names) -> None:
    """Let a server go on that a sampler of this run has paused, and died. EndpointError where somebody else has."""
    if not (client.call("GET", "/is_paused") or {}).get("is_paused"):
        return
    label = weight_label(client.url, client.call("GET", "/weight_info"))
    if not names.is_of_run(label):
        raise EndpointError(
            f"server {client.url}: it is paused, and not by this run (the label of its weights is {label!r}); wait until it "
            "goes on, or start it anew"
        )
    client.call("POST", "/resume")


def check_free(client: EndpointClient, names: Names) -> None:
    """EndpointError where another run has the server. Whether that run still goes on, nobody here can know: one that was
    killed has not given it back, and a person says so."""
    label = weight_label(client.url, client.call("GET", "/weight_info"))
    if (holder := names.holder(label)) is not None:
        raise EndpointError(
            f"server {client.url}: {holder} has it, and a server has the weights of one run; give this run another server, "
            f"or where that one has ended without giving it back, free it: POST {client.url}/update_weight_version with "
            f'{{"new_version": "{FREE}"}}, or start it anew'
        )


def give_back(client: EndpointClient, label: str) -> None:
    """Take the sampler's label from a server that has it; one that is lost, or somebody else's, stays as it is."""
    try:
        found = client.call("GET", "/weight_info", within=GIVE_BACK_SECONDS)
        if weight_label(client.url, found) == label:
            client.call("POST", "/update_weight_version", {"new_version": FREE}, within=GIVE_BACK_SECONDS)
    except (ServerLost, RLTrainError):
        return


def claim(client: EndpointClient, names: Names) -> None:
    """Give the server this sampler's label, before it is paused for the first time."""
    try:
        check_free(client, names)  # once more: looking at it takes a while
        client.call("POST", "/update_weight_version", {"new_version": names.label(0)})
    except ServerLost as error:
        raise EndpointError(f"server {client.url}: lost while it was looked at ({error})") from None


def _check_vocabulary(client: EndpointClient, model: str, size: int, end: int) -> None:
    """ModelError where the server's model does not know all token ids of the run's, which has `size`, or some from `end` on,
    where neither model nor tokenizer has any."""
    found = []
    for token in (size - 1, end):
        try:
            client.call("POST", "/v1/completions", probe_body(model, token))
            found.append(True)
        except EndpointError:
            found.append(False)
    if found != [True, False]:
        what = f"no token id {size - 1}" if not found[0] else f"a token id {end}"
        raise ModelError(
            f"server {client.url}: its model {model!r} knows {what}, the run's knows 0 to {size - 1}; let it serve "
            "the model of model.source"
        )
