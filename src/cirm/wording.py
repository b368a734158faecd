"""Words in sentences."""

from __future__ import annotations

from collections.abc import Iterable


def join_words(
    words: Iterable[str], max_words: int | None = None, word_for_others: str = "more"
) -> str:
    """Join words as a sentence does: a, b and c.

    Example:
        >>> join_words(["a", "b", "c"])
        'a, b and c'
        >>> join_words(["a", "b", "c", "d"], max_words=3)
        'a, b and 2 more'
    """
    parts = list(words)
    if max_words is not None and len(parts) > max_words:
        parts[max_words - 1 :] = [f"{len(parts) - max_words + 1} {word_for_others}"]
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def join_names_in_backticks(
    names: Iterable[str], max_words: int | None = None, word_for_others: str = "more"
) -> str:
    """Join names of columns and the like, each in backticks, as a sentence does.

    Example:
        >>> join_names_in_backticks(["age", "sex"])
        '`age` and `sex`'
    """
    return join_words([f"`{name}`" for name in names], max_words, word_for_others)


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    Example:
        >>> format_count(1, "row"), format_count(2000, "row")
        ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def capitalise_first_letter(text: str) -> str:
    """Return a text whose first letter is a capital, and the rest as it is.

    Example:
        >>> capitalise_first_letter("accuracy of MNIST")
        'Accuracy of MNIST'
    """
    return f"{text[:1].upper()}{text[1:]}"
