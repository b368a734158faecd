"""Shortcuts in images that no direction of the pixels shows: turned, moved, covered.

`python -m benchmarks.image_shortcuts --out FILE` draws two environments of grey images
in sequence. The label is the parity of the class, replaced with probability 0.25. Where
the shortcut u, which is the label but for 20 and 10 % of the rows, is 1, the image is
changed; in the unseen environment u contradicts the label in 90 %. One line of JSON for
each run is appended to the file, and runs of the present revision that are there are
left out.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.data.downloads import load_images_and_count_classes
from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.base import Learner
from cirm.learners.steady import Steady
from cirm.randomness import Randomness

FLIPS = (0.2, 0.1, 0.9)
LABEL_FLIP = 0.25
TEST_ROWS = 4000
ADAPT_ROWS = 300


def map_images(a: float, b: float, c: float, d: float) -> Callable[[Tensor], Tensor]:
    """Return what maps images linearly, by rows (a, b) and (c, d) of a matrix."""

    def apply(images: Tensor) -> Tensor:
        theta = torch.tensor([[a, b, 0.0], [c, d, 0.0]]).expand(len(images), 2, 3)
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)

    return apply


def move_right(images: Tensor) -> Tensor:
    """Return images moved by a seventh of their width."""
    step = images.shape[-1] // 7
    return F.pad(images, (step, 0))[..., :-step]


def cover_lower_part(images: Tensor) -> Tensor:
    """Return images without their lower third."""
    height = images.shape[-2]
    kept = torch.arange(height) < height // 2 + height // 7
    return images * kept[:, None]


def add_mark(images: Tensor) -> Tensor:
    """Return images with a cross of five pixels somewhere."""
    n, _, height, width = images.shape
    generator = torch.Generator().manual_seed(n)
    top = torch.randint(height - 3, (n,), generator=generator)
    left = torch.randint(width - 3, (n,), generator=generator)
    images, rows = images.clone(), torch.arange(n)
    for i in range(3):
        images[rows, 0, top + i, left + i] = 1
        images[rows, 0, top + 2 - i, left + i] = 1
    return images


def add_noise(images: Tensor) -> Tensor:
    """Return images with normal noise of 0.15."""
    generator = torch.Generator().manual_seed(len(images))
    noise = torch.randn(images.shape, generator=generator)
    return (images + 0.15 * noise).clamp(0, 1)


def dilate(images: Tensor) -> Tensor:
    """Return images with thicker strokes."""
    return F.max_pool2d(images, 3, 1, 1)


def blur(images: Tensor) -> Tensor:
    """Return images in which each pixel is the mean of nine."""
    return F.avg_pool2d(images, 3, 1, 1, count_include_pad=False)


def cut_hole(images: Tensor) -> Tensor:
    """Return images without their middle."""
    side = images.shape[-1]
    kept = (torch.arange(side) - side // 2).abs() > side // 7
    return images * (kept[:, None] | kept)


def add_specks(images: Tensor) -> Tensor:
    """Return images of which one pixel in twenty is white."""
    generator = torch.Generator().manual_seed(len(images))
    specks = torch.rand(images.shape, generator=generator) < 0.05
    return images.clamp(min=specks.float())


def darken_every_second_pixel(images: Tensor) -> Tensor:
    """Return images of which the fields of one colour of a chessboard are darker."""
    side = torch.arange(images.shape[-1])
    return images * (0.5 + 0.5 * ((side + side[:, None]) % 2))


def brighten_to_the_right(images: Tensor) -> Tensor:
    """Return images with a faint light from the right."""
    return (images + torch.linspace(0, 0.3, images.shape[-1])).clamp(max=1)


def coarsen(images: Tensor) -> Tensor:
    """Return images of which each four pixels have their mean."""
    small = F.avg_pool2d(images, 2)
    return F.interpolate(small, scale_factor=2)


def replace_lower_right_quarter(images: Tensor) -> Tensor:
    """Return images whose lower right quarter is that of the image before."""
    images, half = images.clone(), images.shape[-1] // 2
    images[..., half:, half:] = images.roll(1, 0)[..., half:, half:]
    return images


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda images: images,
    "rotate": lambda images: images.rot90(1, (2, 3)),
    "mirror": lambda images: images.flip(3),
    "move": move_right,
    "cover": cover_lower_part,
    "dilate": dilate,
    "blur": blur,
    "noise": add_noise,
    # These were looked at once for revision 7, and developed on for revision 10.
    "turn-30": map_images(math.cos(0.52), -math.sin(0.52), math.sin(0.52), 0.866),
    "upside-down": lambda images: images.flip(2),
    "transpose": lambda images: images.transpose(2, 3),
    "shear": map_images(1.0, 0.4, 0.0, 1.0),
    "shrink": map_images(1.35, 0.0, 0.0, 1.35),
    "outline": lambda images: dilate(images) - images,
    "mark": add_mark,
    "darker": lambda images: 0.6 * images,
    # These were looked at once for revision 10; revision 11 was developed on "hole".
    "hole": cut_hole,
    "flat": map_images(1.0, 0.0, 0.0, 1.4),
    "contrast": lambda images: images.square(),
    "specks": add_specks,
    "chessboard": darken_every_second_pixel,
    # These were looked at once, when revision 11 was finished.
    "light": brighten_to_the_right,
    "coarse": coarsen,
    "wrong-quarter": replace_lower_right_quarter,
}
"""What the shortcut does to images [n, 1, side, side]."""


def draw_environments(
    source: str, kind: str, seed: int, rows: int, side: int
) -> tuple[list[Environment], list[Tensor]]:
    """Return two environments and the unseen one, and the shortcut u of each."""
    images, _ = load_images_and_count_classes(source)
    generator = torch.Generator().manual_seed(1000 + seed)

    def flip(values: Tensor, chance: float) -> Tensor:
        chosen = torch.rand(len(values), generator=generator) < chance
        return torch.where(chosen, 1 - values, values)

    order = torch.randperm(len(images.train_images), generator=generator)
    parts = [
        (images.train_images, images.train_labels, order[:rows]),
        (images.train_images, images.train_labels, order[rows : 2 * rows]),
        (
            images.test_images,
            images.test_labels,
            torch.randperm(len(images.test_images), generator=generator)[:TEST_ROWS],
        ),
    ]
    environments: list[Environment] = []
    cues: list[Tensor] = []
    for (grey, labels, chosen), chance in zip(parts, FLIPS, strict=True):
        x = grey[chosen][:, None].float() / 255
        x = F.adaptive_avg_pool2d(x, side)
        y = flip(labels[chosen] % 2, LABEL_FLIP)
        u = flip(y, chance)
        if (u == 1).any():
            x[u == 1] = CHANGES[kind](x[u == 1])
        name = f"environment-{len(cues) + 1}"
        environments.append(Environment(name, x, y, Task.classification(2)))
        cues.append(u)
    return environments, cues


def fit_sequence(
    learner: Learner[Any], environments: list[Environment], seed: int
) -> tuple[Any, float]:
    """Return the state after all environments, and the processor time."""
    randomness, start = Randomness((seed,)), time.process_time()
    state = learner.init(randomness.at("init"))
    for i, stage in enumerate(Stream.create_sequential(environments)):
        state = learner.observe(state, stage, randomness.at("stage", i))
    return state, time.process_time() - start


def score_answers(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401
    unseen: Environment,
) -> float:
    """Return the accuracy in an environment, in %."""
    with torch.no_grad():
        answers = learner.predict(state, unseen.take_all(1).x).argmax(-1)[0]
    return 100 * float((answers == unseen.targets.flatten()).float().mean())


def measure_run(
    source: str, kind: str, seed: int, rows: int, side: int
) -> dict[str, Any]:
    """Return the accuracy of `steady`, adapted and not, of the oracle and of ERM."""
    (*known, unseen), cues = draw_environments(source, kind, seed, rows, side)
    x = unseen.take_all(1).x
    learner = create(Steady(view="directions"), known[0])
    state, seconds = fit_sequence(learner, known, seed)
    result: dict[str, Any] = {"unseen": score_answers(learner, state, unseen)}
    result["found"] = int(state.found[0])
    adapted = learner.adapt(state, x[:, :ADAPT_ROWS])
    result["adapted"] = score_answers(learner, adapted, unseen)
    result["refused"] = int(adapted.adaptation.notes[0, 1])
    adapted = learner.adapt(state, x)
    result["adapted_all"] = score_answers(learner, adapted, unseen)
    result["refused_all"] = int(adapted.adaptation.notes[0, 1])
    if result["found"]:
        result["p_value"] = float(state.p_values[0, 0])
        result["is_read_by_network"] = bool(state.features.is_taught[0, 0])
        with torch.no_grad():
            engine = learner._create_engine_for_inputs()  # type: ignore[attr-defined]
            _, values = engine._compute_stable_logits(state, x)
        result["read"] = 100 * float((values[0][0] == cues[-1]).float().mean())
    erm = create("erm", known[0])
    plain, erm_seconds = fit_sequence(erm, known, seed)
    result["erm"] = score_answers(erm, plain, unseen)
    result["time"] = seconds / erm_seconds
    result["oracle"] = score_oracle(source, seed, rows, side)
    return result


@functools.cache
def score_oracle(source: str, seed: int, rows: int, side: int) -> float:
    """Return the accuracy of `steady` if the same images have no shortcut."""
    (*known, unseen), _ = draw_environments(source, "none", seed, rows, side)
    learner = create(Steady(view="directions"), known[0])
    state, _ = fit_sequence(learner, known, seed)
    return score_answers(learner, state, unseen)


def format_table(records: list[dict[str, Any]], seed: int) -> str:
    """Return a Markdown table of the runs of a seed, a row for each kind."""
    runs = {tuple(r["run"][:2]): r for r in records if r["run"][2] == seed}
    sources = sorted({source for source, _ in runs}, reverse=True)
    lines = ["| shortcut | " + " | ".join(sources) + " | ERM, unseen |"]
    lines.append("|---|" + "--:|" * (len(sources) + 1))
    for kind in CHANGES:
        row = [runs[source, kind] for source in sources if (source, kind) in runs]
        cells = [_format_run(record) for record in row]
        erm = " and ".join(f"{record['erm']:.0f}" for record in row)
        lines.append(f"| {kind} | " + " | ".join(cells) + f" | {erm} |")
    return "\n".join(lines)


def _format_run(record: dict[str, Any]) -> str:
    """Return unseen / adapted to 300 rows / to all rows / reading, in %."""
    if not record["found"]:
        return f"{record['unseen']:.0f}, not noticed"
    adapted = [
        "refused" if record[f"refused{part}"] else f"{record[f'adapted{part}']:.0f}"
        for part in ("", "_all")
    ]
    return " / ".join([f"{record['unseen']:.0f}", *adapted, f"{record['read']:.0f}"])


def main() -> None:
    """Run what is not yet in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", default="mnist")
    parser.add_argument("--kinds", nargs="+", default=list(CHANGES), choices=CHANGES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--side", type=int, default=14)
    parser.add_argument("--table", type=int, metavar="SEED", help="print its runs")
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    records = [json.loads(line) for line in lines]
    if options.table is not None:
        recent = [r for r in records if r.get("revision") == Steady.revision]
        print(format_table(recent, options.table))
        return
    known = [r["run"] for r in records if r.get("revision") == Steady.revision]
    for seed in options.seeds:
        for kind in options.kinds:
            run = [options.source, kind, seed, options.rows, options.side]
            if run in known:
                continue
            record = {"run": run, "revision": Steady.revision, **measure_run(*run)}
            with options.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
