"""One step: its rollouts to traces, a step summary and scalars."""
