"""The ways by which weights get from learners to samplers."""
