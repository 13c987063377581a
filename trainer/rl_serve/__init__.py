"""A policy behind OpenAI's HTTP interface, on Ray Serve."""
