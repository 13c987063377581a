"""What a run takes, measured while it trains: from which placements are planned."""
