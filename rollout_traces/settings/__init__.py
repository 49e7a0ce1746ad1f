"""What a run declares, and how values are read from text and environment variables."""
