"""From the trainer's tensors to a record in the spool: what runs on the calling thread."""
