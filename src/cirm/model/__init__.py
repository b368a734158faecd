"""Trained models: fit, update, adapt, predict, evaluate, inspect and store them."""
