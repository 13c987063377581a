"""A training program of the user's (`trainer.kind: command`, or verl) under the same run object. See docs/backends.md."""
