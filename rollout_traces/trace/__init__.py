"""A transcript as a trackio.Trace and back, with its packed token track; the digest of a step."""
