"""Enforces NetworkPolicies on the nodes of a kind cluster whose network plug-in does not: an e2e fixture.

    policy_controller.py            until its standard input ends; KUBECONFIG names the cluster
    policy_controller.py --clear    take away what one has left that was killed

It watches policies, pods and namespaces, and gives every node of the local Docker the rules that `policy_rules` makes of
them, within a fraction of a second. It writes `enforcing` when all nodes have them, and takes them away when it ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

from policy_rules import CHAIN, RECEIVED, SENT, Object, ruleset

PATHS = ("/apis/networking.k8s.io/v1/networkpolicies", "/api/v1/pods", "/api/v1/namespaces")
CLEAR = f"""
for hook in FORWARD INPUT; do iptables -D $hook -j {CHAIN}; done
for chain in {CHAIN} {SENT} {RECEIVED}; do iptables -F $chain; done
for chain in {CHAIN} {SENT} {RECEIVED}; do iptables -X $chain; done
iptables -t nat -D POSTROUTING -j {CHAIN}; iptables -t nat -F {CHAIN}; iptables -t nat -X {CHAIN}
"""
# Traffic between pods of one node crosses its bridge only, where iptables does not see it unasked. What goes to another node
# would have the sender's node as its sender (the mark is kube-proxy's, for what must have it).
SERVE = f"""
set -e
sysctl -qw net.bridge.bridge-nf-call-iptables=1
iptables -t nat -N {CHAIN}; iptables -t nat -I POSTROUTING -j {CHAIN}
for range in $RANGES; do iptables -t nat -A {CHAIN} -m mark ! --mark 0x4000/0x4000 -d $range -j ACCEPT; done
iptables -N {CHAIN}
for hook in FORWARD INPUT; do iptables -I $hook -j {CHAIN}; done
while IFS= read -r -d '' rules; do iptables-restore --noflush <<< "$rules"; echo done; done
"""
WAIT_SECONDS = 60.0


def say(words: str) -> None:
    print(words, flush=True)


class Kind(threading.Thread):
    """The objects of one kind, followed for ever."""

    def __init__(self, path: str, changed: threading.Event):
        super().__init__(daemon=True)
        self.listed = threading.Event()
        self._path, self._changed = path, changed
        self._lock = threading.Lock()
        self._items: dict[str, Object] = {}

    @property
    def items(self) -> list[Object]:
        """Those that there are."""
        with self._lock:
            return list(self._items.values())

    def run(self) -> None:
        """Follow them."""
        while True:
            try:
                self._follow()
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                say(f"{self._path}: {error}")
            time.sleep(0.5)

    def _follow(self) -> None:
        """List, then watch until that ends, as it does now and then."""
        get = ["kubectl", "get", "--raw"]
        answer = subprocess.run([*get, self._path], capture_output=True, timeout=30, check=True).stdout
        listed: Object = json.loads(answer)
        with self._lock:
            self._items = {each["metadata"]["uid"]: each for each in listed["items"]}
        self.listed.set()
        self._changed.set()
        since = f"{self._path}?watch=true&resourceVersion={listed['metadata']['resourceVersion']}"
        with subprocess.Popen([*get, since], stdout=subprocess.PIPE) as watch:
            assert watch.stdout is not None
            for line in watch.stdout:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    watch.terminate()
                    return
                with self._lock:
                    uid = event["object"]["metadata"]["uid"]
                    if event["type"] == "DELETED":
                        self._items.pop(uid, None)
                    else:
                        self._items[uid] = event["object"]
                self._changed.set()


class Node(threading.Thread):
    """A node that gets the newest rules; one that stands still holds no other up."""

    def __init__(self, name: str, ranges: list[str]):
        super().__init__(daemon=True)
        self.enforces = threading.Event()
        self._name, self._ranges = name, ranges
        self._wanted, self._lock = "", threading.Condition()

    def want(self, rules: str) -> None:
        """From now on it should have these."""
        with self._lock:
            self._wanted = rules
            self._lock.notify()

    def run(self) -> None:
        """Give it what it should have, each time by one shell on it."""
        while True:
            self.clear()
            line = ["docker", "exec", "-i", "-e", f"RANGES={' '.join(self._ranges)}", self._name]
            with subprocess.Popen(
                [*line, "bash", "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stdout
            ) as shell:
                try:
                    self._keep_up(shell)
                except OSError as error:
                    say(f"node {self._name}: {error}")
                shell.kill()
            time.sleep(1)

    def _keep_up(self, shell: subprocess.Popen[bytes]) -> None:
        """Until the node does not take its rules."""
        assert shell.stdin is not None
        assert shell.stdout is not None
        has = ""
        while True:
            with self._lock:
                while self._wanted == has:
                    self._lock.wait()
                has = self._wanted
            shell.stdin.write(has.encode() + b"\0")
            shell.stdin.flush()
            if shell.stdout.readline() != b"done\n":
                say(f"node {self._name} did not take its rules")
                return
            self.enforces.set()

    def clear(self) -> None:
        """Take away what there is; of what is not there iptables complains, to nobody."""
        line = ["docker", "exec", self._name, "bash", "-c", CLEAR]
        try:
            subprocess.run(line, capture_output=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            say(f"node {self._name} stands still")


def nodes_here() -> list[Object]:
    """The cluster's nodes that are containers of this Docker."""
    asked = subprocess.run(["kubectl", "get", "nodes", "-o", "json"], capture_output=True, check=True)
    running = subprocess.run(["docker", "ps", "--format", "{{.Names}}"], capture_output=True, check=True)
    names = set(running.stdout.decode().split())
    return [each for each in json.loads(asked.stdout)["items"] if each["metadata"]["name"] in names]


def keep_up(nodes: list[Node], ranges: list[str]) -> None:
    """Give the nodes their rules at each change, for ever."""
    changed = threading.Event()
    kinds = [Kind(path, changed) for path in PATHS]
    for kind in kinds:
        kind.start()
    for kind in kinds:
        kind.listed.wait()
    while True:
        changed.clear()
        rules = ruleset(*(kind.items for kind in kinds), ranges)
        for node in nodes:
            node.want(rules)
        changed.wait()


def main() -> None:
    found = nodes_here()
    if not found:
        sys.exit("no node of the cluster is a container of this Docker")
    ranges = [each["spec"]["podCIDR"] for each in found]
    nodes = [Node(each["metadata"]["name"], ranges) for each in found]
    if "--clear" in sys.argv:
        for node in nodes:
            node.clear()
        return
    threading.Thread(target=keep_up, args=(nodes, ranges), daemon=True).start()
    for node in nodes:
        node.start()
    try:
        for node in nodes:
            if not node.enforces.wait(WAIT_SECONDS):
                sys.exit(f"not all nodes have their rules after {WAIT_SECONDS:.0f} s")
        say("enforcing")
        sys.stdin.read()
    finally:
        for node in nodes:
            node.clear()


if __name__ == "__main__":
    main()
