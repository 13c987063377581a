"""Answers to all rows of a file or folder, without a service: `rltrain generate`, on Ray Data."""
