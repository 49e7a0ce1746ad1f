"""The process or thread that turns spooled records into stored traces."""
