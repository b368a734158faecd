"""A learner, a data set and a selection rule that extend cirm."""
