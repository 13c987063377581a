"""Models: one plain-PyTorch decoder for training and sampling, and how folders, hub ids and presets become one."""
