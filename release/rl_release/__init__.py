"""What a release is made of: images as archives that two builds write alike, what is in them, and where they come from."""
