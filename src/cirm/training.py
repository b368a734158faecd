"""The training loop and the batches that it uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from cirm.environments import Environment, Examples, Stage
from cirm.objectives import Batch
from cirm.randomness import RandomDraws, Randomness

Terms = dict[str, Tensor]
"""The terms of a loss by name, [replica] each."""

Watch = Callable[[int, int, Terms], None]
"""Called after each epoch with the steps done, the total, and numbers [replica]."""

MAX_CACHED_BYTES = 2**28
"""Inputs up to this size are loaded once per stage: 256 MiB fit on any machine."""


class DivergenceError(ArithmeticError):
    """Parameters became infinite or not a number.

    Its arguments are the message and the indices of the replicas that diverged.
    """


def ignore_training_steps(step: int, n_steps: int, numbers: Terms) -> None:
    """Do nothing with the progress of training."""


@dataclass(frozen=True)
class Descent:
    """How a learner minimises its loss.

    In an epoch every example is used once: the largest environment of the stage is
    split into parts of at most `batch` examples, and each other one into as many parts.

    Args:
        epochs: Number of passes over the examples of a stage.
        batch: Most examples of one environment in a step; 0 for all of them.
        rate: Learning rate.
        decay: Weight decay: this times the parameters is added to the gradient.
        optimiser: "adam" or "sgd".
        device: Torch device, such as "cpu" or "cuda".

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> import torch
        >>> from cirm import Environment, Randomness, Task
        >>> x, targets = torch.ones(10, 1), torch.full((10,), 3.0)
        >>> stage = (Environment("a", x, targets, Task.regression()),)
        >>> def loss(params, past, batch):
        ...     residuals = batch.x[..., 0] * params - batch.y
        ...     return {"risk": residuals.square().mean(-1)}
        >>> descent = Descent(epochs=100, batch=5, rate=0.1)
        >>> start = torch.zeros(1, 1)
        >>> params = descent.minimise(loss, start, (), stage, Randomness((0,)))
        >>> round(float(params), 2)
        3.0
    """

    epochs: int = 100
    batch: int = 256
    rate: float = 1e-3
    decay: float = 0.0
    optimiser: Literal["adam", "sgd"] = "adam"
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("epochs", "rate"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"The setting {name} must be positive, but is "
                    f"{getattr(self, name)}. Change it with --set {name}=VALUE (in "
                    f"Python {name}=)."
                )
        for name in ("batch", "decay"):
            if not getattr(self, name) >= 0:
                value = getattr(self, name)
                raise ValueError(
                    f"The setting {name} must not be negative, but is {value}. Change "
                    f"it with --set {name}=VALUE (in Python {name}=)."
                )
        if self.optimiser not in ("adam", "sgd"):
            raise ValueError(
                "The setting optimiser must be adam or sgd, but is "
                f"{self.optimiser!r}. Change it with --set optimiser=adam (in Python "
                "optimiser=)."
            )

    def count_steps(self, stage: Stage) -> int:
        """Return the number of steps in an epoch."""
        return -(-max(map(len, stage)) // self.batch) if self.batch else 1

    def iterate_batches(self, stage: Stage, randomness: Randomness) -> Iterator[Batch]:
        """Yield a batch for each step of every epoch."""
        replicas, steps = len(randomness.seeds), self.count_steps(stage)
        noise = randomness.at("noise").start_draws()
        stage, mean_weights = normalise_weights_per_environment(stage)
        if steps == 1:
            everything = [e.take_all(replicas) for e in stage]
            weights = [e.expand_weights(replicas) for e in stage]
            whole = self.build_batch(
                everything, noise, weights=weights, mean_weights=mean_weights
            )
            for epoch in range(self.epochs):
                yield whole._replace(progress=epoch / self.epochs)
            return
        orders = [randomness.at("order", e.name).start_draws() for e in stage]
        source = concatenate_environments_of_stage(
            tuple(load_lazy_inputs_into_memory(e, replicas) for e in stage)
        )
        starts = list(accumulate(map(len, stage[:-1]), initial=0))
        for epoch in range(self.epochs):
            rows = [
                split_rows_into_equal_parts(o.permutation(len(e)), steps)
                for o, e in zip(orders, stage, strict=True)
            ]
            for step, row in enumerate(zip(*rows, strict=True)):
                progress = (epoch + step / steps) / self.epochs
                sizes = tuple(part.shape[1] for part in row)
                if len(source) < len(stage):
                    places = zip(row, starts, strict=True)
                    row = (torch.cat([part + start for part, start in places], 1),)
                pairs = list(zip(source, row, strict=True))
                pieces = [e.take(r) for e, r in pairs]
                weights = [e.take_weights(r) for e, r in pairs]
                yield self.build_batch(
                    pieces, noise, progress, sizes, weights, mean_weights
                )

    def build_batch(
        self,
        pieces: Sequence[Examples],
        noise: RandomDraws,
        progress: float = 0.0,
        sizes: tuple[int, ...] = (),
        weights: Sequence[Tensor | None] = (),
        mean_weights: tuple[float, ...] = (),
    ) -> Batch:
        """Return a batch of the examples of each environment.

        A piece may hold several environments in a row if `sizes` are their numbers of
        examples. If the examples have weights, those of each piece, [replica, n], have
        been divided by `mean_weights`, the mean of each environment.
        """
        x, y = (
            pair[0] if len(pieces) == 1 else torch.cat(pair, 1)
            for pair in zip(*pieces, strict=True)
        )
        x, y = x.to(self.device), y.to(self.device)
        sizes = sizes or tuple(piece.y.shape[1] for piece in pieces)
        share = build_averaging_weights(sizes, y.device).expand(len(y), -1, -1)
        if known := [part for part in weights if part is not None]:
            share = share * torch.cat(known, 1).unsqueeze(1).to(self.device)
        return Batch(x, y, share, sizes, progress, noise, mean_weights)

    def minimise(
        self,
        loss: Callable[[Tensor, Any, Batch], Terms],
        params: Tensor,
        past: Any,  # noqa: ANN401  a tuple of tensors, fixed during the stage
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> Tensor:
        """Minimise a loss over a stage.

        The loss is summed over the replicas before it is differentiated. Each term
        depends on one replica's parameters only, so that replicas never mix.

        Args:
            loss: Terms of the loss, given parameters [replica, p], `past` and a batch.
            params: Parameters to start from, [replica, p].
            past: What the loss needs of earlier stages; a tuple of tensors.
            stage: The environments to train on.
            randomness: Source of the order of the examples and of noise.
            watch: Called after each epoch.

        Returns:
            The parameters [replica, p] after the last step.

        Raises:
            DivergenceError: If parameters are no longer finite.
        """
        return self.descend_along_gradient(
            create_gradient_function_of_loss(loss),
            params,
            past,
            stage,
            randomness,
            watch,
        )

    def descend_along_gradient(
        self,
        gradient: Callable[[Tensor, Any, Batch], tuple[Tensor, Terms]],
        params: Tensor,
        past: Any,  # noqa: ANN401
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> Tensor:
        """Descend along `gradient(params, past, batch)`, as `minimise` does for a loss.

        The function returns a gradient [replica, p], and numbers for `watch`.
        """
        params = params.detach().clone().to(self.device).requires_grad_()
        steps = self.epochs * self.count_steps(stage)
        for step, numbers in self.iterate_epochs(
            gradient, params, past, stage, randomness
        ):
            watch(step, steps, numbers)
        return params.detach()

    def iterate_epochs(
        self,
        gradient: Callable[[Tensor, Any, Batch], tuple[Tensor, Terms]],
        params: Tensor,
        past: Any,  # noqa: ANN401
        stage: Stage,
        randomness: Randomness,
    ) -> Iterator[tuple[int, Terms]]:
        """Change parameters in place, and yield the steps so far after each epoch.

        With them come the numbers that `gradient` returned for the last batch.
        """
        optimiser = self.create_optimiser(params)
        steps = self.count_steps(stage)
        for step, batch in enumerate(self.iterate_batches(stage, randomness), 1):
            params.grad, numbers = gradient(params, past, batch)
            take_optimiser_step(optimiser, params)
            if step % steps == 0:
                check_parameters_are_finite(params, step)
                yield step, numbers

    def minimise_in_turn(
        self,
        loss: Callable[[int, list[Tensor], Batch], Terms],
        trained_params: list[Tensor],
        stage: Stage,
        randomness: Randomness,
    ) -> Iterator[tuple[int, Batch, Terms]]:
        """Let several parameters descend losses of their own, in turn.

        The movers, [replica, ...], are changed in place. `loss(turn, movers, batch)` is
        differentiated in the mover whose turn it is. Each step yields the number of
        steps done, its batch, and the terms of all losses.
        """
        optimisers = [self.create_optimiser(mover) for mover in trained_params]
        steps = self.count_steps(stage)
        for step, batch in enumerate(self.iterate_batches(stage, randomness), 1):
            numbers: Terms = {}
            for turn, optimiser in enumerate(optimisers):
                leaves = [m.detach() for m in trained_params]
                leaves[turn].requires_grad_()
                terms = loss(turn, leaves, batch)
                total = torch.stack(list(terms.values())).sum()
                (trained_params[turn].grad,) = torch.autograd.grad(total, leaves[turn])
                take_optimiser_step(optimiser, trained_params[turn])
                numbers |= {name: term.detach() for name, term in terms.items()}
            if step % steps == 0:
                check_parameters_are_finite(torch.cat(trained_params, -1), step)
            yield step, batch, numbers

    def create_optimiser(self, params: Tensor) -> torch.optim.Optimizer:
        """Return a new optimiser for these parameters."""
        cls = torch.optim.SGD if self.optimiser == "sgd" else torch.optim.Adam
        avoid_loading_torch_compiler()
        optimiser = cls([params], lr=self.rate, weight_decay=self.decay, fused=True)
        optimiser.register_step_pre_hook(store_gradients_with_parameter_strides)
        return optimiser


def create_gradient_function_of_loss(
    loss: Callable[[Tensor, Any, Batch], Terms],
) -> Callable[[Tensor, Any, Batch], tuple[Tensor, Terms]]:
    """Return a function that gives the gradient of a loss, and its terms."""

    def compute_gradient(
        params: Tensor,
        past: Any,  # noqa: ANN401
        batch: Batch,
    ) -> tuple[Tensor, Terms]:
        terms = loss(params, past, batch)
        total = reduce(torch.add, terms.values()).sum()
        (slope,) = torch.autograd.grad(total, params)
        return slope, {name: term.detach() for name, term in terms.items()}

    return compute_gradient


def take_optimiser_step(optimiser: torch.optim.Optimizer, params: Tensor) -> None:
    """Make one step of an optimiser that has only these parameters.

    This calls torch's functions directly: what `Optimizer.step` does around them takes
    7 % of a training step of table 1, and loads torch's compiler.
    """
    if params.grad is None:
        return
    store_gradients_with_parameter_strides(optimiser)
    group = optimiser.param_groups[0]
    is_plain = type(optimiser) is torch.optim.SGD and not group["momentum"]
    if not is_plain and type(optimiser) is not torch.optim.Adam:
        optimiser.step()
        return
    rates = {name: group[name] for name in ("lr", "weight_decay")}
    with torch.no_grad():
        if is_plain:
            sgd(
                [params],
                [params.grad],
                [None],
                momentum=0.0,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                fused=True,
                **rates,
            )
            return
        state = optimiser.state[params]
        if not state:
            state["step"] = torch.zeros((), device=params.device)
            state["exp_avg"] = torch.zeros_like(params)
            state["exp_avg_sq"] = torch.zeros_like(params)
        adam(
            [params],
            [params.grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            maximize=False,
            **rates,
        )


def avoid_loading_torch_compiler() -> None:
    """Let torch create optimisers without loading `torch._dynamo`.

    Only `torch.compile` needs it, and loading it takes longer than loading torch. Torch
    loads it to mark three methods as not to be compiled, and keeps the marked method in
    an attribute, which this sets to the unchanged method.
    """
    if "torch._dynamo" in sys.modules:
        return
    optimiser = torch.optim.Optimizer
    for method in (
        optimiser.__init__,
        optimiser.zero_grad,
        optimiser.add_param_group,
    ):
        function = getattr(method, "__wrapped__", None)
        if function is not None and not hasattr(function, "__dynamo_disable"):
            setattr(function, "__dynamo_disable", function)


def store_gradients_with_parameter_strides(
    optimiser: torch.optim.Optimizer,
    *_: Any,  # noqa: ANN401
) -> None:
    """Store gradients with the strides of their parameters, which fused steps need."""
    for params in optimiser.param_groups[0]["params"]:
        if params.grad is not None and params.grad.stride() != params.stride():
            params.grad = torch.empty_like(params).copy_(params.grad)


def check_parameters_are_finite(params: Tensor, step: int) -> None:
    """Raise an error if parameters [replica, ...] are not finite."""
    # A sum is finite only if all its terms are, and is twenty times faster to check.
    if not params.sum().isfinite() and not params.isfinite().all():
        lost = [i for i, row in enumerate(params) if not row.isfinite().all()]
        raise DivergenceError(
            f"training diverged at step {step}: the loss became NaN or infinite", lost
        )


def load_lazy_inputs_into_memory(
    environment: Environment, n_replicas: int
) -> Environment:
    """Load lazy inputs into memory if they fit in `MAX_CACHED_BYTES`."""
    if isinstance(environment.inputs, Tensor):
        return environment
    size = 4 * torch.Size(environment.inputs.shape).numel()
    if size > MAX_CACHED_BYTES:
        return environment
    return replace(environment, inputs=environment.take_all(n_replicas).x)


def concatenate_environments_of_stage(stage: Stage) -> Stage:
    """Concatenate the environments of a stage if they fit in `MAX_CACHED_BYTES`.

    A batch is then taken in one piece.
    """
    first, inputs = stage[0], [e.inputs for e in stage if isinstance(e.inputs, Tensor)]
    alike = all(e.replicated == first.replicated for e in stage)
    size = sum(x.nbytes for x in inputs)
    if len(inputs) < max(2, len(stage)) or not alike or size > MAX_CACHED_BYTES:
        return stage
    axis = int(first.replicated)
    targets = torch.cat([e.targets for e in stage], axis)
    known = [e.weights for e in stage if e.weights is not None]
    weights = torch.cat(known, axis) if known else None
    joined = torch.cat(inputs, axis)
    return (replace(first, inputs=joined, targets=targets, weights=weights),)


def normalise_weights_per_environment(stage: Stage) -> tuple[Stage, tuple[float, ...]]:
    """Divide the weights of each environment by their mean, and return these means.

    A batch then averages without bias whichever examples it has. Without any weights
    there are no means.
    """
    if all(environment.weights is None for environment in stage):
        return stage, ()
    scaled, means = [], []
    for environment in stage:
        weights = environment.weights
        if weights is None:
            weights = torch.ones(environment.targets.shape)
        means.append(environment.total_weight / len(environment))
        weights = weights / weights.mean(-1, keepdim=True)
        scaled.append(replace(environment, weights=weights))
    return tuple(scaled), tuple(means)


def split_rows_into_equal_parts(rows: Tensor, n_parts: int) -> tuple[Tensor, ...]:
    """Split rows [replica, n] into nearly equal parts; repeat them if there are few."""
    repeats = -(-n_parts // rows.shape[1])
    return rows.repeat(1, repeats).tensor_split(n_parts, 1)


@lru_cache(maxsize=64)
def build_averaging_weights(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return weights [e, n] that average each environment's examples."""
    blocks = [torch.full((1, size), 1 / size) for size in sizes]
    return torch.block_diag(*blocks).to(device)
