"""What every message about a user's data looks like."""

import re


def has_remedy(error):
    """Whether a message is one line: the place, what happened, what to do next."""
    return bool(re.fullmatch(r"[^\n]+: [^\n]+\. [A-Z][^\n]+\.", str(error)))
