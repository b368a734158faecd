"""A model behind HTTP: predictions, health, metrics and a page to try a row.

Needs the packages of the extra `serve`.
"""
