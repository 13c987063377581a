"""The learner: losses, advantages, packing and schedules (pure), and the data-parallel worker around them."""
