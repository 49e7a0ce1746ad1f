"""Settings that a run declares, and the reading of values from text and environment variables."""
