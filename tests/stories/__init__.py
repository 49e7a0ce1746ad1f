"""Stories: generated runs with one planted cause, or none, to test what the analysis says of them."""
