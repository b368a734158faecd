"""Options that several commands share: where jobs run, and how many at a time."""

from __future__ import annotations

from typing import Annotated

import typer

EngineName = Annotated[
    str, typer.Option(help="Where jobs run: local, or ray for a cluster.")
]
Address = Annotated[
    str,
    typer.Option(
        help="The Ray cluster, HOST:PORT or ray://HOST:PORT.",
        show_default="a running one, or one that starts here",
    ),
]
Workers = Annotated[int, typer.Option(min=0, help="Jobs at a time; 0: one per core.")]
