"""One HTML file that holds what a page shows, and needs no server."""
