"""Names, settings, what is seen and what is decided: plain values."""
