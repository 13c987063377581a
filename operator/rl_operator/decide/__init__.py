"""The state machine of a run and what it says. Pure."""
