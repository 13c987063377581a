"""How data and calls go between processes: the general channel, its policies, calls with a deadline."""
