"""The status server over real sockets."""

import http.client
import json
import socket
import threading
import time
from datetime import UTC, datetime
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rl_api.errors import InvalidConfig, PortInUse
from rl_api.progress import CheckpointStatus, Progress
from rl_trainer.observe.metrics import StepRecord
from rl_trainer.run import status_server
from rl_trainer.run.status_server import MAX_BODY, StatusServer

CHECKPOINT = CheckpointStatus(step=20, uri="runs/a/checkpoints/20", time=datetime(2026, 1, 2, tzinfo=UTC))


def call(server, path, *, method="GET", body=None, token=None, key=None):
    """Returns (status, headers, body as text)."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Idempotency-Key": key} if key else {}
    request = Request(server.url + path, data=body, method=method, headers=headers)
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except HTTPError as error:
        return error.code, error.headers, error.read().decode()


def post(server, document=None, **options):
    body = b"" if document is None else json.dumps(document).encode()
    status, _, text = call(server, "/checkpoint", method="POST", body=body, **options)
    return status, json.loads(text)


@pytest.fixture
def asked():
    return threading.Event()


@pytest.fixture
def server(asked):
    with StatusServer("arithmetic", on_checkpoint=asked.set) as server:
        yield server


def test_the_status_is_the_contract_s_progress_and_the_newest_checkpoint(server):
    progress = Progress(phase="Training", step=3, max_steps=10, reward=0.5, tokens_per_second=100.0)
    server.update(progress)
    status, headers, text = call(server, "/status")
    document = json.loads(text)
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert document["maxSteps"] == 10
    assert document["tokensPerSecond"] == 100.0
    assert document["checkpoint"] is None
    assert Progress.model_validate(document) == progress
    server.checkpointed(CHECKPOINT)
    assert CheckpointStatus.model_validate(json.loads(call(server, "/status")[2])["checkpoint"]) == CHECKPOINT


def test_before_anything_happened_there_is_a_status(server):
    assert json.loads(call(server, "/status")[2])["phase"] == "Starting"
    assert call(server, "/healthz")[::2] == (200, "ok\n")
    assert "rltrain_step" in call(server, "/metrics")[2]


def test_prometheus_reads_the_metrics(server):
    record = StepRecord(
        step=1,
        time=0.0,
        wall_seconds=2.0,
        reward_mean=0.5,
        kl=0.25,
        completion_tokens=100,
        time_generate=1.5,
        groups_trained=32,
        groups_dropped={"reward_error": 2},
    )
    server.update(Progress(step=1, max_steps=10, buffer_fill=0.5), record)
    server.update(Progress(step=2, max_steps=10, buffer_fill=0.5), record)
    server.update(Progress(step=2, max_steps=10, buffer_fill=0.5))
    status, headers, text = call(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    samples = {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "run")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    values = {key: sample.value for key, sample in samples.items()}
    assert values[("rltrain_step",)] == 2
    assert values[("rltrain_buffer_fill_ratio",)] == 0.5
    assert values[("rltrain_kl",)] == 0.25
    assert values[("rltrain_step_part_seconds", "generate")] == 1.5
    assert values[("rltrain_completion_tokens_total",)] == 200
    assert values[("rltrain_groups_trained_total",)] == 32
    assert values[("rltrain_groups_dropped_total", "reward_error")] == 2
    assert {sample.labels["run"] for sample in samples.values()} == {"arithmetic"}
    assert ("rltrain_entropy",) not in values  # not measured, so not there
    assert all(name.startswith("rltrain_") for name, *_ in samples)


def test_a_checkpoint_is_asked_for_and_waited_for(server, asked):
    def drive():
        assert asked.wait(60)
        server.checkpointed(CHECKPOINT)

    driver = threading.Thread(target=drive)
    driver.start()
    status, document = post(server)
    driver.join()
    assert status == 200
    assert document == {"checkpoint": CHECKPOINT.to_document()}


def test_a_request_that_is_brought_again_is_the_same_one():
    asked = []
    with StatusServer("run", on_checkpoint=lambda: asked.append(1)) as server:
        assert post(server, {"timeoutSeconds": 0.05}, key="1-noon")[0] == 504
        assert post(server, {"timeoutSeconds": 0.05}, key="1-noon")[0] == 504
        assert asked == [1], "the driver has heard of it"
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(post(server, key="1-noon")))
        waiting.start()
        while waiting.is_alive() and not answers:
            server.checkpointed(CHECKPOINT)
            waiting.join(0.05)
        granted = (200, {"checkpoint": CHECKPOINT.to_document(), "id": "1-noon"})
        assert answers == [granted]
        assert post(server, key="1-noon") == granted
        assert asked == [1]
        # Another wish is another checkpoint, whatever was written for the one before.
        assert post(server, {"timeoutSeconds": 0.05}, key="1-evening")[0] == 504
        assert asked == [1, 1]


def test_a_request_that_failed_may_be_brought_again():
    asked = threading.Semaphore(0)
    answers = []
    with StatusServer("run", on_checkpoint=asked.release) as server:
        for _ in range(2):
            waiting = threading.Thread(target=lambda: answers.append(post(server, key="1-noon")))
            waiting.start()
            assert asked.acquire(timeout=60)
            server.checkpoint_failed("the disk is full")
            waiting.join(60)
    assert answers == [(500, {"error": "the disk is full"})] * 2


def test_everyone_who_waits_is_answered_by_one_checkpoint(asked):
    requests = threading.Semaphore(0)
    answers = []
    with StatusServer("run", on_checkpoint=requests.release) as server:
        waiting = [threading.Thread(target=lambda: answers.append(post(server))) for _ in range(4)]
        for thread in waiting:
            thread.start()
        for _ in waiting:
            assert requests.acquire(timeout=60)
        server.checkpointed(CHECKPOINT)
        for thread in waiting:
            thread.join(60)
    assert [status for status, _ in answers] == [200] * 4


def test_an_earlier_checkpoint_is_no_answer(server, asked):
    server.checkpointed(CHECKPOINT)
    status, document = post(server, {"timeoutSeconds": 0.05})
    assert asked.is_set()
    assert status == 504
    assert "within 0.05 s" in document["error"]


def test_a_checkpoint_that_cannot_be_written_is_told(server, asked):
    def drive():
        assert asked.wait(60)
        server.checkpoint_failed("the disk is full")

    driver = threading.Thread(target=drive)
    driver.start()
    assert post(server) == (500, {"error": "the disk is full"})
    driver.join()


def test_who_waits_when_the_run_ends_is_told(asked):
    server = StatusServer("run", on_checkpoint=asked.set)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(post(server)))
    waiting.start()
    assert asked.wait(60)
    server.close()
    waiting.join(60)
    assert answers[0][0] == 503
    assert "the run is ending" in answers[0][1]["error"]
    server.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((server.host, server.port), timeout=1)


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"timeoutSeconds": 0}', b'{"timeoutSeconds": "5"}', b'{"timeout": 5}', b"\xff\xfe"],
)
def test_a_body_that_is_none_is_refused_before_the_driver_hears_of_it(server, asked, body):
    status, _, text = call(server, "/checkpoint", method="POST", body=body)
    assert status == 400
    assert "timeoutSeconds" in json.loads(text)["error"]
    assert not asked.is_set()


def test_a_body_that_is_too_long_is_not_read(server):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    connection.putrequest("POST", "/checkpoint")
    connection.putheader("Content-Length", str(MAX_BODY + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 400
    assert str(MAX_BODY) in json.loads(answer.read())["error"]
    connection.close()


def test_other_paths_and_methods_are_told_what_there_is(server):
    status, _, text = call(server, "/")
    assert (status, "/status, /metrics, /healthz, /checkpoint" in text) == (404, True)
    status, headers, _ = call(server, "/checkpoint")
    assert (status, headers["Allow"]) == (405, "POST")
    assert call(server, "/status", method="POST")[0] == 405
    status, _, text = call(server, "/status", method="DELETE")
    assert (status, "error" in json.loads(text)) == (501, True)
    assert call(server, "/status?pretty=1")[0] == 200


def test_with_a_token_only_the_probe_goes_without():
    token = "a-secret-\u00e9"
    with StatusServer("run", token=token, patience=0.0) as server:
        for path in ("/status", "/metrics", "/nothing"):
            status, headers, text = call(server, path)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "step" not in text
        assert call(server, "/healthz")[0] == 200
        assert call(server, "/checkpoint", method="POST", body=b"")[0] == 401
        assert call(server, "/status", token="wrong")[0] == 401
        assert server.authorized(f"Bearer {token}")
        assert not server.authorized(token)
        assert not server.authorized(None)
    with StatusServer("run", token="plain") as server:
        assert call(server, "/status", token="plain")[0] == 200


def test_a_port_that_is_taken_is_named_with_the_field_to_set(server):
    with pytest.raises(PortInUse, match=rf"^spec\.server\.port: port {server.port} is taken"):
        StatusServer("other", port=server.port)


def test_an_address_this_machine_does_not_have_is_a_sentence():
    with pytest.raises(InvalidConfig, match=r"cannot listen at 192\.0\.2\.1:0"):
        StatusServer("run", host="192.0.2.1")


def test_the_port_is_free_again_after_the_end(server):
    server.close()
    with StatusServer("next", port=server.port) as following:
        assert following.port == server.port
        assert call(following, "/healthz")[0] == 200


def test_a_client_that_hangs_up_or_dawdles_does_not_disturb_others(server):
    silent = socket.create_connection((server.host, server.port), timeout=5)
    silent.sendall(b"GET /sta")
    gone = socket.create_connection((server.host, server.port), timeout=5)
    gone.close()
    assert call(server, "/status")[0] == 200
    silent.close()


@pytest.fixture
def long_lingering(monkeypatch) -> None:
    """What does not wait for this long ends sooner, on a busy machine too."""
    monkeypatch.setattr(status_server, "LINGER_SECONDS", 120.0)
    monkeypatch.setattr(status_server, "WATCHED_SECONDS", 120.0)


@pytest.mark.usefixtures("long_lingering")
def test_who_keeps_asking_gets_the_last_status_before_the_end(server) -> None:
    assert json.loads(call(server, "/status")[2])["step"] == 0
    server.update(Progress(phase="Succeeded", step=7, max_steps=7))
    closer = threading.Thread(target=server.close)
    closer.start()
    assert json.loads(call(server, "/status")[2])["step"] == 7
    closer.join(60)
    assert not closer.is_alive(), "it ends as soon as that was read"


def test_who_has_the_token_is_waited_for_though_it_was_away() -> None:
    server = StatusServer("run", token="plain")
    server.update(Progress(phase="Succeeded", step=7, max_steps=7))
    closer = threading.Thread(target=server.close)
    closer.start()
    closer.join(0.5)
    assert closer.is_alive(), "nobody has asked yet"
    assert json.loads(call(server, "/status", token="plain")[2])["step"] == 7
    closer.join(10)
    assert not closer.is_alive()


def test_a_token_is_no_reason_to_wait_for_ever() -> None:
    server = StatusServer("run", token="plain", patience=0.2)
    closer = threading.Thread(target=server.close)
    closer.start()
    closer.join(10)
    assert not closer.is_alive()


@pytest.mark.usefixtures("long_lingering")
def test_nobody_is_waited_for_who_never_asked(server) -> None:
    server.update(Progress(phase="Succeeded", step=7, max_steps=7))
    started = time.monotonic()
    server.close()
    assert time.monotonic() - started < 60
