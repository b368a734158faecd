"""What is predicted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """What is predicted: a class, or in a regression a real number.

    Args:
        classes: Names of the classes, two or more; empty for a regression.

    Raises:
        ValueError: If there is a single class, or two have the same name.

    Example:
        >>> Task(("healthy", "ill")).kind
        'classification'
        >>> Task.classification(3).classes
        ('0', '1', '2')
        >>> Task.regression().kind
        'regression'
    """

    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.classes) == 1:
            raise ValueError(
                "Classification needs two or more classes, but there is only "
                f"{self.classes[0]!r}. Name all classes (with --classes, in Python "
                "classes=)."
            )
        seen: set[str] = set()
        for name in self.classes:
            if name in seen:
                raise ValueError(
                    f"The class {name!r} is named twice. Name each class once (with "
                    "--classes, in Python classes=)."
                )
            seen.add(name)

    @classmethod
    def classification(cls, count: int) -> Task:
        """Return a classification whose classes are named "0", "1", ..."""
        if count < 2:
            raise ValueError(
                "Classification needs two or more classes, but their number is "
                f"{count}. Give 2 or more."
            )
        return cls(tuple(map(str, range(count))))

    @classmethod
    def regression(cls) -> Task:
        """Return a regression."""
        return cls()

    @property
    def kind(self) -> str:
        """Either "classification" or "regression"."""
        return "classification" if self.classes else "regression"
