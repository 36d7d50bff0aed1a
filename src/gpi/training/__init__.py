"""Training runs: collecting, learning, and the session that runs both."""
