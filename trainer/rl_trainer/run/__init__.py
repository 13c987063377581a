"""One run on this machine or on a Ray cluster: session, attempts, folder, status server, Ray's start."""
