"""The buffer between samplers and learners: admission, its state machine, the actor around them."""
