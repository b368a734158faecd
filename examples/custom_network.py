"""A network of your own: a small convolutional one, on images from two environments.

python examples/custom_network.py
"""

import torch
from torch import Tensor, nn

from cirm import InvariantClassifier
from cirm.data.colored import Colored


class Small(nn.Module):
    """Two layers of filters and a linear head; the last layer must be linear."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.filters = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1),
            nn.ELU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.ELU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * 9, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Outputs [n, classes] of images [n, channels, height, width]."""
        return self.head(self.filters(images))


problem = Colored(source="digits", environments=2, examples=150).draw_problem((0,))
pairs = [environment.take_all(1) for environment in problem.train]
images = torch.cat([x[0] for x, _ in pairs])
labels = torch.cat([y[0] for _, y in pairs])
sites = [e.name for e in problem.train for _ in range(len(e))]

model = InvariantClassifier(
    "c-bvirm",
    network=Small(channels=images.shape[1], classes=2),
    settings={"epochs": 8, "batch": 75, "rate": 3e-3, "samples": 2},
)
model.fit(images, labels, environments=sites)
print(f"learned from {[entry.name for entry in model.model_.history]}")
print(f"{100 * model.score(images, labels):.1f} % right where it has learned")
unseen = problem.test[0].take_all(1)
print(f"{100 * model.score(unseen.x[0], unseen.y[0]):.1f} % right where it has not")
