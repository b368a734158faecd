"""Print the figures of docs/method.md about values. Not a test: it takes minutes.

    python tests/learners/cirm/values.py

Sites of 500 rows, of which a reading follows the target on each site's own scale: 1 and
0.5 where it is learned, -0.5 at the unseen one. Or, alike but for where the inputs lie.
"""

from statistics import mean, stdev

import numpy as np

from cirm import InvariantRegressor

SEEDS = range(3)
WAYS = {"straight": (1.0, 0.0), "curved": (0.0, 1.0)}


def site(
    seed: int, way: str, scale: float, away: float = 0.0
) -> tuple[np.ndarray, ...]:
    """Four causes and the reading of 500 rows, and their targets."""
    rng, (straight, curved) = np.random.default_rng(seed), WAYS[way]
    x = rng.normal(size=(500, 4)) + away
    target = straight * x @ [1, 0.5, -1, 0.3]
    target += curved * (np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2])
    target += 0.5 * rng.normal(size=500)
    return np.c_[x, scale * target + 0.3 * rng.normal(size=500)], target


def told(learner: str, order: str, sites: list, unseen: tuple, columns: int) -> float:
    """Part of the variance at the unseen site that is explained, from such columns."""
    model = InvariantRegressor(learner=learner)
    if order == "joint":
        names = np.repeat(["a", "b"], 500)
        x, y = (np.concatenate(part) for part in zip(*sites, strict=True))
        model.fit(x[:, :columns], y, environments=names)
    else:
        for name, (x, y) in zip("ab", sites, strict=True):
            model.partial_fit(x[:, :columns], y, environment=name)
    return model.score(unseen[0][:, :columns], unseen[1])


def main() -> None:
    """A line for each set-up."""
    for way in WAYS:
        for order in ("sequential", "joint"):
            for shift in ("reading", "inputs"):
                found: dict[str, list[float]] = {}
                for seed in SEEDS:
                    scales = (1.0, 0.5, -0.5) if shift == "reading" else (1.0,) * 3
                    lie = (0.0, 0.0, 0.0) if shift == "reading" else (0.0, 1.0, 0.5)
                    *sites, unseen = (
                        site(10 * seed + k, way, scale, away)
                        for k, (scale, away) in enumerate(zip(scales, lie, strict=True))
                    )
                    for learner in ("cirm", "erm", "irmv1"):
                        r2 = told(learner, order, sites, unseen, 5)
                        found.setdefault(learner, []).append(r2)
                    r2 = told("erm", order, sites, unseen, 4)
                    found.setdefault("erm without the reading", []).append(r2)
                said = [f"{n} {mean(v):.2f} ({stdev(v):.2f})" for n, v in found.items()]
                print(f"{way}, {order}, other {shift}: {', '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
