"""Coloured digits: two environments in sequence, and one in which the colour inverts.

python examples/colored_digits.py
"""

from cirm import create, run
from cirm.data.colored import Colored

problem = Colored(source="digits", environments=2, examples=200).draw_problem((0, 1))
for key in ("erm", "c-virmv1"):
    learner = create(key, problem.train[0], {"epochs": 15}, preset="paper")
    records = list(run(learner, problem, "sequential", seeds=(0, 1), label=key))
    scores = [r for r in records if r.kind == "score" and r.stage == 1]
    for split in ("train", "test"):
        own = [r.value for r in scores if r.split == split]
        print(f"{key}, {split}: {sum(own) / len(own):.1f} % right")
