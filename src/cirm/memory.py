"""Examples of past environments, and counts of what a state stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from cirm.environments import Environment, Examples, Stage
from cirm.randomness import RandomDraws, Randomness

Nested = TypeVar("Nested")
"""A tensor, or a tuple of tensors and tuples."""


def measure_state_size(state: Any) -> dict[str, dict[str, int]]:  # noqa: ANN401  any state
    """Count the examples, parameters and bytes of a state, by field, for one replica.

    `Examples` in the state are raw data of the past; any other tensor is parameters.
    """
    entries = {}
    for name, part in state._asdict().items():
        tensors = list(list_state_tensors(part))
        raw = sum(e.y.shape[1:].numel() for e in find_stored_examples(part))
        numbers = sum(t.shape[1:].numel() for t in tensors)
        size = sum(t.element_size() * t.shape[1:].numel() for t in tensors)
        if size:
            entries[name] = {
                "examples": raw,
                "parameters": 0 if raw else numbers,
                "bytes": size,
            }
    return entries


def list_state_tensors(state: Any) -> list[Tensor]:  # noqa: ANN401  nested tuples of tensors
    """Return the tensors of nested tuples, in order."""
    if isinstance(state, Tensor):
        return [state]
    return [tensor for piece in state for tensor in list_state_tensors(piece)]


def find_stored_examples(state: Any) -> list[Examples]:  # noqa: ANN401  nested tuples of tensors
    """Return the raw examples in nested tuples of tensors."""
    if isinstance(state, Examples):
        return [state]
    if isinstance(state, Tensor):
        return []
    return [examples for piece in state for examples in find_stored_examples(piece)]


class PastExampleMemory(NamedTuple):
    """Examples of past environments, grouped by environment.

    Attributes:
        kept: The examples.
        owner: Number of the environment that each example is from, [replica, k].
    """

    kept: Examples
    owner: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of examples of each past environment."""
        return tuple(self.owner[0].unique_consecutive(return_counts=True)[1].tolist())

    def split_by_environment(self) -> list[Examples]:
        """Return the examples of each past environment."""
        if not self.sizes:
            return []
        pieces = (part.split(self.sizes, 1) for part in self.kept)
        return [Examples(x, y) for x, y in zip(*pieces, strict=True)]


def create_empty_examples(n_replicas: int) -> Examples:
    """Return no examples for each replica, when the features are not known yet."""
    return Examples(torch.zeros(n_replicas, 0), torch.zeros(n_replicas, 0))


def create_empty_memory(n_replicas: int) -> PastExampleMemory:
    """Return the memory before any data."""
    owner = torch.zeros(n_replicas, 0, dtype=torch.int64)
    return PastExampleMemory(create_empty_examples(n_replicas), owner)


def draw_examples_without_replacement(
    environment: Environment, n_examples: int, randomness: Randomness
) -> Examples:
    """Draw examples without replacement; all of them if there are too few."""
    return environment.take(randomness.permutation(len(environment))[:, :n_examples])


def add_examples_of_stage_to_memory(
    memory: PastExampleMemory,
    stage: Stage,
    size: int,
    randomness: Randomness,
    is_total_size: bool = False,
) -> PastExampleMemory:
    """Return the memory with `size` random examples of each new environment.

    If `size` is the total, all environments share it evenly: past ones are cut down.
    """
    pieces = memory.split_by_environment()
    pieces += [
        draw_examples_without_replacement(e, size, randomness.at(e.name)) for e in stage
    ]
    if is_total_size:
        even, rest = divmod(size, len(pieces))
        # An environment's examples are in random order: the first ones are a draw.
        pieces = [
            take_first_examples_of_replicas(e, even + (i < rest))
            for i, e in enumerate(pieces)
        ]
    pieces = [piece for piece in pieces if piece.y.shape[1]]
    if not pieces:
        return memory
    counts = torch.tensor([piece.y.shape[1] for piece in pieces])
    owner = torch.arange(len(pieces)).repeat_interleave(counts)
    return PastExampleMemory(
        concatenate_examples(pieces), owner.repeat(len(randomness.seeds), 1)
    )


def take_first_examples_of_replicas(examples: Examples, n_examples: int) -> Examples:
    """Return the first examples of each replica."""
    return Examples(examples.x[:, :n_examples], examples.y[:, :n_examples])


def concatenate_examples(pieces: Iterable[Examples]) -> Examples:
    """Concatenate examples, without the pieces that are empty."""
    filled = [piece for piece in pieces if piece.y.shape[1]]
    return Examples(*(torch.cat(part, 1) for part in zip(*filled, strict=True)))


def update_example_reservoir(
    stored_examples: Examples,
    n_seen: Tensor,
    arriving: Examples,
    max_examples: int,
    draws: RandomDraws,
) -> tuple[Examples, Tensor]:
    """Return a uniform draw of all examples that ever arrived, and their number.

    `n_seen` [replica] is the number of examples before; see
    `draw_rows_kept_in_reservoir`.
    """
    held, arrivals = stored_examples.y.shape[1], arriving.y.shape[1]
    rows = draw_rows_kept_in_reservoir(held, arrivals, n_seen, max_examples, draws)
    whole = concatenate_examples([stored_examples, arriving])
    return select_examples_at_rows(whole, rows), n_seen + arrivals


def draw_rows_kept_in_reservoir(
    n_held: int, n_arriving: int, n_seen: Tensor, max_examples: int, draws: RandomDraws
) -> Tensor:
    """Draw which of the held and arriving examples stay, [replica, m].

    Vitter, "Random sampling with a reservoir", 1985, algorithm R: the t-th example
    takes a place drawn from t, if that is one of the `max_examples`. `n_seen` [replica]
    is the number of examples before; examples that arrive together are offered in
    order. Rows count the held examples first.
    """
    turn = n_seen.unsqueeze(1) + torch.arange(1, n_arriving + 1)
    # The modulus of 62 random bits is uniform to one part in 2^62 / turn.
    place = torch.where(
        turn > max_examples, draws.integers(2**62, n_arriving) % turn, turn - 1
    )
    room = min(max_examples, n_held + n_arriving)
    # The row in each place among kept and arriving examples: the last one stays.
    source = torch.arange(room + 1).repeat(len(turn), 1)
    rows = torch.arange(n_held, n_held + n_arriving).expand(len(turn), -1)
    return source.scatter_reduce(1, place.clamp(max=room), rows, "amax")[:, :room]


def select_examples_at_rows(pool: Examples, rows: Tensor) -> Examples:
    """Return the examples at rows [replica, m] of each replica."""
    places = (rows + pool.y.shape[1] * torch.arange(len(rows))[:, None]).flatten()
    x = pool.x.flatten(0, 1).index_select(0, places).unflatten(0, rows.shape)
    return Examples(x, pool.y.gather(1, rows))


def check_torch_device(device: str, where: str) -> str:
    """Return the device if PyTorch can compute on it; `where` begins the error."""
    try:
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"{where}: PyTorch cannot use {device!r} on this machine. Use cpu, or "
            "install the PyTorch build for your accelerator."
        ) from None
    return device


def move_tensors_to_device(state: Any, device: str) -> Any:  # noqa: ANN401  nested tuples of tensors
    """Return the same nested named tuples with their tensors on a device."""
    if isinstance(state, Tensor):
        return state.to(device)
    return type(state)(*(move_tensors_to_device(piece, device) for piece in state))


def stack_states_of_replicas(states: Sequence[Nested]) -> Nested:
    """Return one tuple of tensors with a leading replica axis; they may be nested."""
    parts: Any = states
    if isinstance(parts[0], Tensor):
        return torch.stack(parts)  # type: ignore[return-value]
    return type(parts[0])(
        *(stack_states_of_replicas(part) for part in zip(*parts, strict=True))
    )


def select_state_of_replica(state: Nested, replica: int) -> Nested:
    """Return the tensors of one replica."""
    if isinstance(state, Tensor):
        return state[replica]  # type: ignore[return-value]
    parts: Any = state
    return type(parts)(*(select_state_of_replica(part, replica) for part in parts))


def draw_rows_without_replacement(
    randomness: Randomness, n_examples: int, n_rows: int
) -> Tensor:
    """Draw rows [replica, n_rows] without replacement from a number of examples."""
    return randomness.permutation(n_examples)[:, :n_rows]


def select_rows_by_k_center(inputs: Tensor, n_rows: int) -> Tensor:
    """Select rows [replica, n_rows] that cover inputs [replica, n, *features].

    Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985: the
    first row, then each time the row that is farthest from all selected ones.
    """
    inputs = inputs.flatten(2)
    norms = inputs.square().sum(-1)
    rows = torch.zeros(len(inputs), n_rows, dtype=torch.int64, device=inputs.device)
    nearest = torch.full_like(norms, torch.inf)  # squared, to the nearest chosen
    for turn in range(n_rows):
        row = rows[:, turn : turn + 1]
        centre = inputs.gather(1, row.unsqueeze(-1).expand(-1, -1, inputs.shape[-1]))
        away = norms + norms.gather(1, row) - 2 * (inputs @ centre.mT).squeeze(-1)
        nearest = torch.minimum(nearest, away)
        # Rounding must not let a row be chosen twice, nor must an equal input.
        nearest.scatter_(1, row, -torch.inf)
        if turn + 1 < n_rows:
            rows[:, turn + 1] = nearest.argmax(1)
    return rows


def list_rows_that_were_not_chosen(chosen_rows: Tensor, n_examples: int) -> Tensor:
    """Return the rows [replica, n - m] of n examples that are not in `chosen_rows`."""
    free = torch.ones(len(chosen_rows), n_examples, dtype=torch.bool)
    free.scatter_(1, chosen_rows, False)
    return free.nonzero()[:, 1].view(len(chosen_rows), -1)
