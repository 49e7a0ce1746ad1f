"""One file a format. `registry` lists them."""
