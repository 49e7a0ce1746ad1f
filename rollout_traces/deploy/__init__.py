"""Puts the inspector on a Hugging Face Space, or into a folder that a container is built from."""
