"""Runs that red's user applies: too much for anybody, or with names of places and things that are not its own."""

from __future__ import annotations

from tenants import Attack, refused

_DEEP = "@DEEP@"


def nested(levels: int) -> tuple[str, str]:
    """For `refused`: objects within objects in place of _DEEP."""
    return f'"{_DEEP}"', '{"a":' * levels + "1" + "}" * levels


# What is said by the CustomResourceDefinition, by the operator's admission, or by a condition: the first that refuses.
EXHAUSTION = [
    Attack(
        "arguments 1,200 levels deep",
        refused({"task": {"args": {"deep": _DEEP}}}, replace=nested(1200)),
        r"task\.args.*(deep|nested|levels)",
    ),
    Attack(
        "a program's settings 300 levels deep",
        refused(
            {"trainer": {"kind": "command", "command": ["true"], "config": {"deep": _DEEP}}, "task": None},
            replace=nested(300),
        ),
        r"trainer\.config.*(deep|nested|levels)",
    ),
    Attack(
        "a specification of 1.2 MB",
        refused({"task": {"args": {f"text{index}": "x" * 60_000 for index in range(20)}}}),
        r"(64 KiB|65536|bytes|too (long|large|big)|larger|at most)",
    ),
    Attack(
        "an annotation 1,100 levels deep",
        lambda tenants: tenants.as_red(
            "annotate",
            "rltrainingrun",
            "honest",
            "--overwrite",
            "kubectl.kubernetes.io/last-applied-configuration=" + '{"spec":' * 1100 + "1" + "}" * 1100,
        ),
        "exit code 0",  # whose annotation it is; nothing comes of it
    ),
    Attack(
        "2^63 - 1 retries",
        refused({"retry": {"limit": 2**63 - 1}}),
        r"retry\.limit.*(less than or equal to|at most)",
    ),
    Attack(
        "10^308 cores",
        refused({"sampler": {"resources": {"cpu": 1e308}}}),
        r"sampler\.resources\.cpu.*(less than or equal to|at most|<=)",
    ),
    Attack(
        "10^-9 cores",
        refused({"sampler": {"resources": {"cpu": 1e-9}}}),
        r"sampler\.resources\.cpu.*greater than",
    ),
    Attack(
        "no memory",
        refused({"sampler": {"resources": {"memory": "0"}}}),
        r"sampler\.resources\.memory.*allowed",
    ),
    Attack(
        "a quantity beyond all numbers",
        refused({"sampler": {"resources": {"memory": "9" * 31 + "P"}}}),
        r"sampler\.resources\.memory.*allowed",
    ),
    Attack(
        "a quantity that never ends",
        refused({"sampler": {"resources": {"memory": "1" * 100_000}}}),
        r"sampler\.resources\.memory.*(Too long|may not be more than|longer)",
    ),
    Attack(
        "a million samplers",
        refused({"sampler": {"replicas": 1_000_000}}),
        r"sampler\.replicas.*(less than or equal to|at most)",
    ),
    Attack(
        "2^63 - 1 threads",
        refused({"sampler": {"threads": 2**63 - 1}}),
        r"sampler\.threads.*(less than or equal to|at most)",
    ),
    Attack(
        "a grace of 31 years",
        refused({"scheduling": {"preemptionGracePeriod": 999_999_999}}),
        r"preemptionGracePeriod.*(1h|3600)",
    ),
    Attack(
        "the priority of the system",
        refused({"scheduling": {"priorityClass": "system-node-critical"}}),
        r"scheduling\.priorityClass: found 'system-node-critical', allowed by .*Ask",
    ),
    Attack("an image with a line break", refused({"image": "a\nb"}), r"spec\.image.*(should match|allowed)"),
    Attack(
        "an image of 5,000 characters",
        refused({"image": "a" * 5000}),
        r"spec\.image.*(Too long|longer|may not be more than)",
    ),
    Attack(
        "a NUL byte in a command",
        refused({"trainer": {"kind": "command", "command": ["a\0b"]}, "task": None, "model": None}),
        r"trainer\.command\[0\].*(should match|allowed|NUL)",
    ),
    Attack("the port of Ray's agent", refused({"server": {"port": 52365}}), r"server\.port.*52365"),
    Attack(
        "a pattern of 100 KB",
        refused({"task": {"rewards": [{"rule": "regex", "pattern": "(a+)+" * 20_000}]}}),
        r"pattern.*(Too long|longer|may not be more than)",
    ),
    Attack(
        "a name of 1,000 characters",
        refused({}, name="a" * 1000),
        r"metadata\.name.*(no more than|must be|at most)",
    ),
    Attack(
        "variables of 10 MB",
        refused(
            {
                "trainer": {
                    "kind": "command",
                    "command": ["true"],
                    "env": [{"name": f"A{index}", "value": "x" * 60_000} for index in range(160)],
                },
                "task": None,
                "model": None,
            }
        ),
        r"(trainer\.env.*(Too many|at most)|too large|limit)",
    ),
]

PLACES = [
    Attack(
        "checkpoints above a bucket's folder",
        refused(
            {"checkpoint": {"storage": {"persistentVolumeClaim": None, "s3": "s3://bucket/a/../../other"}}}
        ),
        r"checkpoint\.storage\.s3.*without \.\.",
    ),
    Attack(
        "checkpoints in a folder above",
        refused(
            {"checkpoint": {"storage": {"persistentVolumeClaim": None, "path": "../../another-0000/run"}}}
        ),
        r"checkpoint\.storage.*(allowed|required)",
    ),
    Attack(
        "a claim of another namespace",
        refused({"checkpoint": {"storage": {"persistentVolumeClaim": "blue/checkpoints"}}}),
        r"persistentVolumeClaim.*(should match|allowed)",
    ),
    Attack(
        "a model at the metadata service",
        refused({"model": {"source": "http://169.254.169.254/latest/meta-data"}}),
        r"model\.source.*allowed: tiny, a folder, a hub id",
    ),
    Attack(
        "a model among the head's files, by address",
        refused({"model": {"source": "file:///etc/rltrain"}}),
        r"model\.source.*allowed: tiny, a folder, a hub id",
    ),
    Attack(
        "a model above a bucket's folder",
        refused({"model": {"source": "s3://bucket/../other/model"}}),
        r"model\.source.*without \.\.",
    ),
    Attack(
        "prompts of another's head",
        refused(
            {
                "task": {
                    "environment": "prompts",
                    "name": None,
                    "args": None,
                    "file": "http://10.0.0.1:8265/api/jobs/",
                }
            }
        ),
        r"task\.file.*allowed",
    ),
    Attack(
        "a GPU pool without a GPU",
        refused({"sampler": {"pools": ["gpu"], "resources": {"accelerators": 0}}}),
        r"sampler\.pools: found pool gpu for pods of the sampler that ask for no accelerator",
    ),
    Attack(
        "all devices by a variable of its program",
        refused(
            {
                "trainer": {
                    "kind": "command",
                    "command": ["true"],
                    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                },
                "task": None,
                "model": None,
            }
        ),
        r"NVIDIA_VISIBLE_DEVICES",
    ),
    Attack(
        "Ray's authentication off by a variable of its program",
        refused(
            {
                "trainer": {
                    "kind": "command",
                    "command": ["true"],
                    "env": [{"name": "RAY_AUTH_MODE", "value": "disabled"}],
                },
                "task": None,
                "model": None,
            }
        ),
        r"RAY_AUTH_",
    ),
]
