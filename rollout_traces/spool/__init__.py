"""Records on local disk: the queue between a training thread and the worker."""
