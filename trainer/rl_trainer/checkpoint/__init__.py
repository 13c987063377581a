"""Checkpoints as files: the store, what makes a folder a checkpoint, copies elsewhere."""
