"""The only way into Trackio, and what is read back to know that it arrived."""
