"""The command line: what runs here comes from the trainer, what runs on a cluster is done through the Kubernetes API."""
