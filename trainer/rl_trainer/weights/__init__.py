"""Publishing weight versions from learners to samplers."""
