"""In place of an agent that Ray starts beside every node: says that it serves nothing, and lives as long as the node.

Ray's node waits until its agents have written their ports into the session's folder, and ends when one of them does. What
they serve, a dashboard and packages for actors, a run on one machine has no use for; and to start the two takes as long
as to import torch. This is a script, not a module: it must start fast.
"""

import os
import sys
import time

# The ports of each agent, as Ray names their files; -1 is Ray's own sign for none.
PORTS = {
    "dashboard": ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    "runtime_env": ("runtime_env_agent_port",),
}


def main() -> None:
    """Arguments: the agent's name, then the options that Ray gives it."""
    node = os.getppid()
    options = dict(argument[2:].split("=", 1) for argument in sys.argv[2:] if "=" in argument)
    for name in PORTS[sys.argv[1]]:
        path = os.path.join(options["session-dir"], f"{name}_{options['node-id']}")
        with open(f"{path}.new", "w") as file:
            file.write("-1")
        os.replace(f"{path}.new", path)
    while os.getppid() == node:
        time.sleep(1)


if __name__ == "__main__":
    main()
