"""How one attempt ends. Pure."""
