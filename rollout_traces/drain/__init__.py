"""From handed-over records to what is stored: what runs in the sidecar, or on a thread."""
