"""A transcript as a trackio.Trace and back, with its packed token track; the step summary of a step."""
