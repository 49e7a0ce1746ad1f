"""The only folder that writes to Trackio; it reads back what it wrote to know that it arrived."""
