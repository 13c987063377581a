from __future__ import annotations

import base64
from pathlib import Path

import yaml
from operator_worlds import container, groups, make_plan

from rl_api import load_run
from rl_operator.model.tokens import derive_token
from rl_operator.render.objects import all_objects


class TestConfig:
    def test_the_trainer_can_read_it(self, tmp_path: Path) -> None:
        effective = make_plan({"suspend": True})
        config = all_objects(effective, 2, b"key")[3]
        file = tmp_path / "run.yaml"
        file.write_text(config["data"]["run.yaml"])
        run = load_run(str(file), target="cluster")
        assert run.spec == effective.spec
        assert run.spec.server.port == 8090
        assert run.spec.suspend is False
        assert config["immutable"] is True
        assert config["metadata"]["name"] == "sums-2"

    def test_a_port_of_the_users_own(self) -> None:
        effective = make_plan({"server": {"port": 9000}})
        assert {"name": "status", "containerPort": 9000} in container(groups(effective)["head"])["ports"]
        policy = all_objects(effective, 1, b"key")[0]
        assert [port["port"] for port in policy["spec"]["ingress"][1]["ports"]] == [9000]

    def test_the_tokens_are_in_the_secret_only(self) -> None:
        objects = all_objects(make_plan(), 1, b"key")
        tokens = {
            "token": derive_token(b"key", "12345678-90ab", 1, "status"),
            "auth_token": derive_token(b"key", "12345678-90ab", 1, "ray"),
        }
        found = {key: base64.b64decode(text).decode() for key, text in objects[2]["data"].items()}
        assert found == tokens
        assert len(set(tokens.values())) == 2
        assert not any(token in yaml.safe_dump(objects) for token in tokens.values())
