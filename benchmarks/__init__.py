"""The benchmark: our learners compared with matrix products, usual code and peers."""
