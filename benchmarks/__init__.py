"""The benchmark: our learners beside bare products, usual code and other packages."""
