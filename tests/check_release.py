"""Install each built distribution into an empty environment and run its demo.

Run by `make release` as `python tests/check_release.py dist/*.whl dist/*.tar.gz`.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def check(distribution):
    """Install a distribution, run `cirm demo` elsewhere, and look at what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        venv.create(root / "env", with_pip=True)
        bin_folder = root / "env" / "bin"
        install = [bin_folder / "python", "-m", "pip", "install", "--quiet"]
        install += ["--disable-pip-version-check", "-c", CONSTRAINTS, distribution]
        subprocess.run(install, check=True)
        subprocess.run([bin_folder / "cirm", "demo"], check=True, cwd=root)
        summary = json.loads((root / "demo" / "summary.json").read_text())
        assert summary["learners"], "the demo wrote no results"
        assert (root / "demo" / "report.html").stat().st_size > 10_000
    print(f"{distribution.name}: installed and ran the demo")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        check(Path(path).resolve())
