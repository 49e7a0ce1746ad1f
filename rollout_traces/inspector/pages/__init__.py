"""The pages: a module each, with what its script and programs may ask, and the answers' types.

A function takes a view and its own parameters by name; `registry.py` says which page and which route ask it.
"""
