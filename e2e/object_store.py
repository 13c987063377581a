"""An S3 server in a scenario's namespace, and the Secret that runs reach it with."""

from __future__ import annotations

from cluster_client import ASKED, RESTRICTED_CONTAINER, RESTRICTED_POD, Cluster, wait_for

NAME = "objects"
BUCKET = "s3://checkpoints"
SECRET = "objects-access"
_KEY, _PASSWORD, _PORT = "rltrain", "open-sesame", 7070


def serve_objects(cluster: Cluster, namespace: str, image: str, shell_image: str) -> None:
    """Serve an empty bucket in the namespace until that is deleted.

    Args:
        cluster: the cluster.
        namespace: where.
        image: the server's; it has no shell.
        shell_image: any with one, to make the bucket.
    """
    labels = {"app.kubernetes.io/name": NAME}
    locked = RESTRICTED_CONTAINER | {"readOnlyRootFilesystem": True}
    data = {"volumeMounts": [{"name": "data", "mountPath": "/data"}], "securityContext": locked}
    folder = f"/data/{BUCKET.removeprefix('s3://')}"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": RESTRICTED_POD,
            "initContainers": [
                {"name": "bucket", "image": shell_image, "command": ["mkdir", "-p", folder], **data}
            ],
            "containers": [
                {
                    "name": "server",
                    "image": image,
                    "args": ["--port", f":{_PORT}", "posix", "/data"],
                    "env": [
                        {"name": "ROOT_ACCESS_KEY", "value": _KEY},
                        {"name": "ROOT_SECRET_KEY", "value": _PASSWORD},
                    ],
                    "readinessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 1},
                    "resources": ASKED,
                    **data,
                }
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {"selector": labels, "ports": [{"port": _PORT}]},
    }
    access = {
        "AWS_ENDPOINT_URL": f"http://{NAME}.{namespace}.svc:{_PORT}",
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _PASSWORD,
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": namespace},
        "stringData": access,
    }
    cluster.apply(pod, service, secret)

    def ready() -> bool:
        status = (cluster.get("pod", NAME, namespace) or {}).get("status", {})
        return any(each.get("ready") for each in status.get("containerStatuses", []))

    wait_for("the object store is ready", ready, 120)
