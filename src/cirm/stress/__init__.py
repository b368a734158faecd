"""The stress map: where a learner withstands shortcuts, and where it does not."""
