"""What is kept of the past: examples, and the ledger that counts everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Examples, Stage
from cirm.randomness import Draws, Randomness


def count_memory(state: Any) -> dict[str, dict[str, int]]:  # noqa: ANN401  any state
    """What one replica's state holds, by field: examples, parameters and bytes.

    Read off the state itself: `Examples` in it are raw data of the past, any other
    tensor is parameters.
    """
    entries = {}
    for name, part in state._asdict().items():
        tensors = list(list_tensors(part))
        raw = sum(e.y.shape[1:].numel() for e in find_examples(part))
        held = sum(t.shape[1:].numel() for t in tensors)
        spent = sum(t.element_size() * t.shape[1:].numel() for t in tensors)
        if spent:
            entries[name] = {
                "examples": raw,
                "parameters": 0 if raw else held,
                "bytes": spent,
            }
    return entries


def list_tensors(part: Any) -> list[Tensor]:  # noqa: ANN401  nested tuples of tensors
    """The tensors of nested tuples, in order."""
    if isinstance(part, Tensor):
        return [part]
    return [tensor for piece in part for tensor in list_tensors(piece)]


def find_examples(part: Any) -> list[Examples]:  # noqa: ANN401  nested tuples of tensors
    """The raw examples within nested tuples of tensors."""
    if isinstance(part, Examples):
        return [part]
    if isinstance(part, Tensor):
        return []
    return [found for piece in part for found in find_examples(piece)]


class Memory(NamedTuple):
    """Examples of past environments, those of one after those of another.

    `owner` [replica, k] numbers the environment that each was drawn from.
    """

    kept: Examples
    owner: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of examples of each past environment."""
        return tuple(self.owner[0].unique_consecutive(return_counts=True)[1].tolist())

    def split(self) -> list[Examples]:
        """The examples of each past environment; none if nothing is kept."""
        if not self.sizes:
            return []
        pieces = (part.split(self.sizes, 1) for part in self.kept)
        return [Examples(x, y) for x, y in zip(*pieces, strict=True)]


def make_empty_examples(replicas: int) -> Examples:
    """No examples for each of so many replicas; their features are not known yet."""
    return Examples(torch.zeros(replicas, 0), torch.zeros(replicas, 0))


def make_empty_memory(replicas: int) -> Memory:
    """The memory before any data."""
    owner = torch.zeros(replicas, 0, dtype=torch.int64)
    return Memory(make_empty_examples(replicas), owner)


def draw_examples(
    environment: Environment, size: int, randomness: Randomness
) -> Examples:
    """So many examples, or all if there are fewer, drawn without replacement."""
    return environment.take(randomness.permutation(len(environment))[:, :size])


def add_to_memory(
    memory: Memory, stage: Stage, size: int, randomness: Randomness, total: bool = False
) -> Memory:
    """The memory with `size` random examples of each environment of a stage added.

    If `size` is the total of all environments, past and new, they share it evenly, and
    the past ones give up what they have too much of.
    """
    held = memory.split()
    held += [draw_examples(e, size, randomness.at(e.name)) for e in stage]
    if total:
        even, rest = divmod(size, len(held))
        # An environment's examples are in random order: the first ones are a draw.
        held = [take_first(e, even + (i < rest)) for i, e in enumerate(held)]
    held = [piece for piece in held if piece.y.shape[1]]
    if not held:
        return memory
    counts = torch.tensor([piece.y.shape[1] for piece in held])
    owner = torch.arange(len(held)).repeat_interleave(counts)
    return Memory(concatenate_examples(held), owner.repeat(len(randomness.seeds), 1))


def take_first(kept: Examples, size: int) -> Examples:
    """The first so many examples of each replica."""
    return Examples(kept.x[:, :size], kept.y[:, :size])


def concatenate_examples(pieces: Iterable[Examples]) -> Examples:
    """Examples one after another; pieces without any are left out."""
    filled = [piece for piece in pieces if piece.y.shape[1]]
    return Examples(*(torch.cat(part, 1) for part in zip(*filled, strict=True)))


def update_reservoir(
    kept: Examples, seen: Tensor, arriving: Examples, size: int, draws: Draws
) -> tuple[Examples, Tensor]:
    """At most `size` examples, a uniform draw of all that ever arrived, and how many.

    Vitter, "Random sampling with a reservoir", 1985, algorithm R: the t-th arrival
    takes a place drawn from t, if that is one of the `size`. `seen` is [replica]; so
    many arrived before, and all that arrive at once are offered in their order.
    """
    arrivals = arriving.y.shape[1]
    turn = seen.unsqueeze(1) + torch.arange(1, arrivals + 1)
    # The modulus of 62 random bits is uniform to one part in 2^62 / turn.
    place = torch.where(turn > size, draws.integers(2**62, arrivals) % turn, turn - 1)
    held = kept.y.shape[1]
    room = min(size, held + arrivals)
    # The row of each place among the kept and the arriving: the last taker stays.
    source = torch.arange(room + 1).repeat(len(turn), 1)
    rows = torch.arange(held, held + arrivals).expand(len(turn), -1)
    source = source.scatter_reduce(1, place.clamp(max=room), rows, "amax")[:, :room]
    return select_examples(
        concatenate_examples([kept, arriving]), source
    ), seen + arrivals


def select_examples(pool: Examples, rows: Tensor) -> Examples:
    """The examples at rows [replica, m] of each replica."""
    places = (rows + pool.y.shape[1] * torch.arange(len(rows))[:, None]).flatten()
    x = pool.x.flatten(0, 1).index_select(0, places).unflatten(0, rows.shape)
    return Examples(x, pool.y.gather(1, rows))


def move_to_device(part: Any, device: str) -> Any:  # noqa: ANN401  nested tuples of tensors
    """The same nested named tuples with their tensors on a device."""
    if isinstance(part, Tensor):
        return part.to(device)
    return type(part)(*(move_to_device(piece, device) for piece in part))


def draw_rows(randomness: Randomness, examples: int, size: int) -> Tensor:
    """Rows [replica, size] of so many examples, drawn without replacement."""
    return randomness.permutation(examples)[:, :size]


def select_k_centers(x: Tensor, size: int) -> Tensor:
    """Rows [replica, size] of inputs [replica, n, *features] that cover them.

    Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985: the
    first row, then always the one that is farthest from all that are chosen.
    """
    x = x.flatten(2)
    norms = x.square().sum(-1)
    rows = torch.zeros(len(x), size, dtype=torch.int64, device=x.device)
    nearest = torch.full_like(norms, torch.inf)  # squared, to the nearest chosen
    for turn in range(size):
        row = rows[:, turn : turn + 1]
        centre = x.gather(1, row.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        away = norms + norms.gather(1, row) - 2 * (x @ centre.mT).squeeze(-1)
        nearest = torch.minimum(nearest, away)
        # Rounding must not let a row be chosen twice, nor must an equal input.
        nearest.scatter_(1, row, -torch.inf)
        if turn + 1 < size:
            rows[:, turn + 1] = nearest.argmax(1)
    return rows


def select_other_rows(rows: Tensor, examples: int) -> Tensor:
    """The rows [replica, n - m] of so many examples that are not among `rows`."""
    free = torch.ones(len(rows), examples, dtype=torch.bool)
    free.scatter_(1, rows, False)
    return free.nonzero()[:, 1].view(len(rows), -1)
