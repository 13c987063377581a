"""From a run and its profile to Kubernetes objects, as plain dicts. Pure: the same input, the same output."""
