"""The mathematics of reinforcement learning: losses, advantages, importance weights. Pure."""
