"""Gang scheduling: one file for each scheduler, and what picks one (`gang.py`)."""
