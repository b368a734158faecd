"""The board: learners against data that arrive in sequence, scored where unseen."""
