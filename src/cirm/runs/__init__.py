"""Jobs named by their content, engines that run them, and searches over settings."""
