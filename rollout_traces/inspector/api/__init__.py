"""The inspector for programs: typed answers, their routes, and their tools for agents."""
