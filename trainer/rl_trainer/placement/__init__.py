"""Where the actors of a run are placed."""
