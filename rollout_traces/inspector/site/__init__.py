"""A run as a folder of files that any web server serves: the inspector's own pages over answers written down."""
