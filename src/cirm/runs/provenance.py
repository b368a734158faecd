"""The commit of the source code that results come from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cirm import __version__

SOURCE = Path(__file__).parents[1]


def find_source_commit() -> str:
    """Return the commit of this source, marked if changed, or else the version."""
    if shutil.which("git") is None or not _run_git_command("ls-files", "__init__.py"):
        return f"version {__version__}"
    name = _run_git_command("rev-parse", "--short=10", "HEAD")
    if not name:
        return f"version {__version__}"
    changed = _run_git_command("status", "--porcelain", "--", ".")
    return f"{name} and changes" if changed else name


def _run_git_command(*words: str) -> str:
    """Return the output of git in the folder of the source, or "" if it fails."""
    done = subprocess.run(
        ["git", *words], cwd=SOURCE, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""
