"""Experiments as data: jobs named by their content, and what runs them."""
