"""The trainer: samplers, learners and the buffer between them, on Ray."""
