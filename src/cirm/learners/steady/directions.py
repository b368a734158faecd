"""The engine for images, embeddings and long vectors: unstable directions.

At each stage the differences between class means are compared with those of earlier
environments. A change leads to a feature, a function of the inputs with one value per
class, and to a view of the inputs without it; the search is repeated in the view until
nothing is left. An ensemble learns the classes from the view, given what the features
say. What they say in each environment is a table P(value | class), counted where there
are labels and estimated by EM where there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.steady import directions_explain as explain
from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_adapt import (
    adapt_replica,
    measure_gain,
)
from cirm.learners.steady.directions_features import Feature, make_network
from cirm.learners.steady.directions_search import RANK, Moments
from cirm.learners.steady.directions_stage import (
    Hypothesis,
    Outcome,
    search_stage,
    see_rows,
    tally_answers,
)
from cirm.learners.steady.directions_stage import Stage as StageRows
from cirm.learners.steady.directions_state import (
    MOST_FEATURES,
    MOST_PLACES,
    Adaptation,
    Reference,
    State,
    count_channels,
    pick_replica,
    stack_replicas,
)
from cirm.learners.steady.directions_training import (
    EARLY,
    Ensemble,
    Rows,
    compute_members,
    pick_held_out,
    train_members,
)
from cirm.learners.steady.directions_views import View
from cirm.randomness import Draws, Randomness
from cirm.training import Watch

if TYPE_CHECKING:
    from cirm.learners.steady.learner import Steady


@dataclass(frozen=True)
class Directions:
    """Learns with networks from inputs of which single entries mean little."""

    learner: Steady

    def init(self, randomness: Randomness) -> State:
        """Return the state before any data: new networks, nothing else."""
        replicas = len(randomness.seeds)
        network, members = self.learner.network, self.learner.members
        params = network.init(randomness.at("params").spawn(members))
        params[:, network.head] = 0  # a new network says nothing
        empty = torch.zeros(replicas, 0)
        zero = torch.zeros(replicas)
        members_ = params.view(replicas, members, -1)
        return State(
            members=members_,
            frame=torch.tensor([[0.0, 1.0]]).repeat(replicas, 1),
            correction=empty,
            temperature=torch.ones(replicas),
            moments=Moments(empty, empty, empty),
            features=Feature(empty, empty, empty),
            views=View(empty, empty),
            found=zero,
            looks=zero,
            p_values=empty,
            tables=empty,
            places=zero,
            gains=empty,
            leak=torch.zeros(replicas, 3),
            reference=Reference(members_, empty, zero),
            adaptation=Adaptation(empty, empty, empty, torch.zeros(replicas, 4)),
        )

    def observe(
        self, state: State, stage: Stage, randomness: Randomness, watch: Watch
    ) -> State:
        """Search for unstable features, then learn what holds without them."""
        replicas = len(state.members)
        pieces = [environment.take_all(replicas) for environment in stage]
        inputs = torch.cat([piece.x for piece in pieces], 1).float()
        targets = torch.cat([piece.y for piece in pieces], 1)
        places = torch.repeat_interleave(
            torch.arange(len(stage)), torch.tensor([len(e) for e in stage])
        )
        if not self.learner.classes:
            return self._observe_values(state, inputs, targets, randomness, watch)
        if not state.tables.numel():
            state = self._allocate(state, tuple(inputs.shape[2:]))
        state = self.forget_adaptation(state)
        references = self._make_hypotheses(state, inputs, targets, places, randomness)
        outcomes = []
        for r, seed in enumerate(randomness.seeds):
            one = pick_replica(state, r)
            past = one.moments if one.places else None
            outcome = search_stage(
                StageRows(inputs[r].flatten(1), targets[r], places),
                past,
                _list_features(one),
                references[r],
                int(one.looks),
                self.learner.level,
                count_channels(tuple(inputs.shape[2:])),
                self.learner.classes,
                Randomness((seed,), randomness.path),
            )
            outcomes.append(outcome)
        seen = torch.stack([o.rows.float() for o in outcomes]).view(inputs.shape)
        offset = torch.stack(
            [
                _make_offset(o, t, places, self.learner.classes)
                for o, t in zip(outcomes, targets, strict=True)
            ]
        ).float()
        none = torch.zeros(*targets.shape, 0)
        rows = Rows(seen, targets, offset, none)
        fit = train_members(
            self._run_network,
            state.members,
            rows,
            self.learner.likelihood,
            self.learner.descent,
            randomness.at("train"),
            watch,
        )
        outputs = compute_members(self._run_network, fit.params, seen)
        held_out = _centre(pick_held_out(outputs, fit.folds))
        states = [
            self._conclude(state, r, outcomes[r], targets[r], places, held_out[r])
            for r in range(replicas)
        ]
        state = stack_replicas(states)._replace(members=fit.params)
        return self._renew_reference(
            state, fit, seen, targets, places, references, outcomes
        )

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Return logits [replica, sample, n, k], or values [replica, 1, n, 1]."""
        inputs = inputs.float()
        if not self.learner.classes:
            mean = compute_members(self._run_network, state.members, inputs).mean(1)
            shift, scale = state.frame[:, :, None, None].unbind(1)
            return (mean * scale + shift).unsqueeze(1)
        stable, values = self._compute_stable(state, inputs)
        results = []
        for r, logits in enumerate(stable):
            log_tables = state.adaptation.draws[r]
            if log_tables.numel() and values[r].numel():
                found = len(values[r])
                evidence = tables.score_values(log_tables[:, :found], values[r])
                results.append(logits + evidence.to(logits))
            else:
                draws = max(1, log_tables.shape[0] if log_tables.numel() else 1)
                results.append(logits.expand(draws, -1, -1))
        return torch.stack(results)

    def adapt(self, state: State, inputs: Tensor) -> State:
        """Estimate what the features say in the environment of unlabelled inputs."""
        if not self.learner.classes or not state.tables.numel():
            return state
        state = self.forget_adaptation(state)
        stable, values = self._compute_stable(state, inputs.float())
        parts = [
            adapt_replica(pick_replica(state, r), stable[r], values[r])
            for r in range(len(stable))
        ]
        return state._replace(adaptation=stack_replicas(parts))

    def explain(
        self, state: State, columns: Mapping[str, int], environments: int
    ) -> dict[str, Any]:
        """Explain which features are unstable and what an adaptation changed."""
        return explain.explain_state(state, bool(self.learner.classes))

    def forget_adaptation(self, state: State) -> State:
        """Return the state as if it had not been adapted."""
        kept = state.adaptation
        draws = torch.zeros_like(kept.draws[:, :1])
        notes = torch.zeros_like(kept.notes)
        return state._replace(adaptation=kept._replace(draws=draws, notes=notes))

    def _allocate(self, state: State, shape: tuple[int, ...]) -> State:
        """Return the first state with room for what inputs of a shape will need."""
        replicas, k = len(state.members), self.learner.classes
        d, channels = torch.Size(shape).numel(), count_channels(shape)
        width = k + 2 * channels * (channels > 1)
        size = make_network(width, k).size

        def room(*sizes: int) -> Tensor:
            return torch.zeros(replicas, *sizes)

        j = MOST_FEATURES
        factor = room(min(RANK, d), d).double()
        return state._replace(
            correction=room(j, k, k),
            moments=Moments(room(k).double(), room(k, d).double(), factor),
            features=Feature(
                room(j, d, k), room(j, 2, width).double(), room(j, 5, size)
            ),
            views=View(room(j, k, channels, channels), room(j, k, d)),
            p_values=room(j),
            tables=room(MOST_PLACES, j, k, k),
            gains=room(MOST_PLACES, 5),
            reference=state.reference._replace(tally=room(k, 3).double()),
            adaptation=Adaptation(
                room(1, j, k, k), room(j, k, k), room(j, k, k), room(4)
            ),
        )

    def _run_network(
        self, params: Tensor, inputs: Tensor, noise: Draws | None
    ) -> Tensor:
        """Return one logit for each class, or values."""
        outputs = self.learner.network(params, inputs, noise)
        if self.learner.classes:
            outputs = self.learner.likelihood.logits(outputs)  # type: ignore[attr-defined]
        return outputs

    def _compute_stable(
        self, state: State, inputs: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the stable logits [replica, n, k], and the values [feature, n]."""
        channels = count_channels(tuple(inputs.shape[2:]))
        rows, values = [], []
        for r in range(len(inputs)):
            one = pick_replica(state, r)
            seen, known = see_rows(inputs[r].flatten(1), _list_features(one), channels)
            rows.append(seen)
            values.append(
                torch.stack(known) if known else torch.zeros(0, len(seen)).long()
            )
        seen = torch.stack(rows).view(inputs.shape)
        logits = compute_members(self._run_network, state.members, seen)
        logits = _centre(logits).mean(1)
        corrected = [
            correct_logits(pick_replica(state, r), logits[r], values[r])
            for r in range(len(inputs))
        ]
        return torch.stack(corrected), values

    def _make_hypotheses(
        self,
        state: State,
        inputs: Tensor,
        targets: Tensor,
        places: Tensor,
        randomness: Randomness,
    ) -> list[Hypothesis | None]:
        """Return the answers of the easiest predictor, and how often they are right."""
        if not bool(state.places[0]) and int(places.max()) == 0:
            return [None] * len(inputs)
        if not bool(state.places[0]):  # several environments at once: trained on all
            offset = torch.zeros(*targets.shape, self.learner.classes)
            rows = Rows(inputs, targets, offset, offset[..., :0])
            descent = self.learner.descent.__class__(
                epochs=EARLY, rate=self.learner.descent.rate
            )
            fit = train_members(
                self._run_network,
                state.members,
                rows,
                self.learner.likelihood,
                descent,
                randomness.at("reference"),
            )
            outputs = compute_members(self._run_network, fit.early, inputs)
            answers = pick_held_out(outputs, fit.folds).argmax(-1)
            right = (answers == targets).double()
        else:
            channels = count_channels(tuple(inputs.shape[2:]))
            seen = []
            for r in range(len(inputs)):
                one = pick_replica(state, r)
                features = _list_features(one)[: int(one.reference.views)]
                seen.append(see_rows(inputs[r].flatten(1), features, channels)[0])
            rows_ = torch.stack(seen).view(inputs.shape)
            outputs = compute_members(self._run_network, state.reference.params, rows_)
            answers = outputs.log_softmax(-1).mean(1).argmax(-1)
            right = (outputs.argmax(-1) == targets[:, None]).double().mean(1)
        result: list[Hypothesis | None] = []
        for r in range(len(inputs)):
            here = [
                tally_answers(
                    right[r][places == p], targets[r][places == p], self.learner.classes
                )
                for p in range(int(places.max()) + 1)
            ]
            before = [state.reference.tally[r]] if bool(state.places[r]) else []
            result.append(Hypothesis(answers[r], before, here))
        return result

    def _conclude(
        self,
        state: State,
        replica: int,
        outcome: Outcome,
        targets: Tensor,
        places: Tensor,
        held_out: Tensor,
    ) -> State:
        """Return one replica's state after training, its networks left as they were."""
        one = pick_replica(state, replica)
        k = self.learner.classes
        first = int(one.found)
        found = first + len(outcome.known)
        for j, known in enumerate(outcome.known, first):
            one = _store_feature(one, j, known)
        values = torch.stack(outcome.values) if outcome.values else None
        correction = torch.zeros_like(one.correction)
        leak = one.leak
        if values is not None:
            measured = tables.measure_leak(held_out, values, targets)
            correction[:found] = measured.parts.to(correction)
            leak = torch.tensor([measured.size, measured.error, 0.0])
        one = one._replace(
            correction=correction,
            temperature=torch.ones(()),
            moments=outcome.moments,
            found=torch.tensor(float(found)),
            looks=torch.tensor(float(outcome.looks)),
        )
        none = torch.zeros(0, len(targets)).long()
        known_values = none if values is None else values
        logits = correct_logits(one, held_out, known_values, frequencies=False)
        offset = _make_offset(outcome, targets, places, k)
        scale = tables.fit_temperature(logits, offset, targets)
        one = one._replace(temperature=torch.tensor(scale))
        logits = correct_logits(one, held_out, known_values)
        accuracy = (logits.argmax(-1) == targets).float().mean()
        leak = torch.cat([leak[:2], accuracy[None]])
        one = one._replace(leak=leak)
        for place in range(int(places.max()) + 1):
            here = places == place
            one = _store_place(
                one,
                tables.count_values(known_values[:, here], targets[here], k),
                measure_gain(logits[here], known_values[:, here], targets[here]),
            )
        return one

    def _renew_reference(
        self,
        state: State,
        fit: Ensemble,
        seen: Tensor,
        targets: Tensor,
        places: Tensor,
        hypotheses: list[Hypothesis | None],
        outcomes: list[Outcome],
    ) -> State:
        """Return the state with the tallies of the reference, or with a new one."""
        outputs = compute_members(self._run_network, fit.early, seen)
        right = (pick_held_out(outputs, fit.folds).argmax(-1) == targets).double()
        params, tally = state.reference.params.clone(), state.reference.tally.clone()
        views = state.reference.views.clone()
        for r, (outcome, hypothesis) in enumerate(
            zip(outcomes, hypotheses, strict=True)
        ):
            first = not hypothesis or not hypothesis.before
            if first or outcome.known:
                params[r], views[r] = fit.early[r], state.found[r]
                tally[r] = tally_answers(right[r], targets[r], self.learner.classes)
            elif hypothesis:
                tally[r] += torch.stack(hypothesis.here).sum(0)
        return state._replace(reference=Reference(params, tally, views))

    def _observe_values(
        self,
        state: State,
        inputs: Tensor,
        targets: Tensor,
        randomness: Randomness,
        watch: Watch,
    ) -> State:
        """Return the state after a stage of numbers: the ensemble learns all inputs."""
        frame = state.frame
        if not bool(state.places[0]):
            spread = targets.std(1).clamp(min=1e-6)
            frame = torch.stack([targets.mean(1), spread], 1)
        targets = (targets - frame[:, :1]) / frame[:, 1:]
        offset = torch.zeros(*targets.shape, 1)
        fit = train_members(
            self._run_network,
            state.members,
            Rows(inputs, targets, offset, offset[..., :0]),
            self.learner.likelihood,
            self.learner.descent,
            randomness.at("train"),
            watch,
        )
        return state._replace(members=fit.params, frame=frame, places=state.places + 1)


def correct_logits(
    state: State, logits: Tensor, values: Tensor, frequencies: bool = True
) -> Tensor:
    """Return the stable logits [n, k] of one replica, without leak and calibrated.

    The frequencies of the classes are those of all rows so far.
    """
    for j, feature in enumerate(values):
        logits = logits - state.correction[j][feature]
    logits = state.temperature * logits
    if frequencies:
        logits = logits + tables.normalise(state.moments.counts).log().to(logits)
    return logits


def _centre(logits: Tensor) -> Tensor:
    """Return logits less their mean over classes."""
    return logits - logits.mean(-1, keepdim=True)


def _list_features(state: State) -> list[tuple[Feature, View]]:
    """Return the features of one replica, each with its view."""
    return [
        (pick_replica(state.features, j), pick_replica(state.views, j))
        for j in range(int(state.found))
    ]


def _make_offset(
    outcome: Outcome, targets: Tensor, places: Tensor, classes: int
) -> Tensor:
    """Return what is known of each row: its environment's tables and frequencies."""
    offset = torch.zeros(len(targets), classes).double()
    for place in range(int(places.max()) + 1):
        here = places == place
        counts = torch.bincount(targets[here], minlength=classes).double()
        offset[here] += tables.normalise(counts).log()
        if outcome.values:
            values = torch.stack(outcome.values)[:, here]
            table = tables.count_values(values, targets[here], classes)
            offset[here] += tables.score_values(tables.normalise(table).log(), values)
    return offset


def _store_feature(state: State, j: int, known: Any) -> State:  # noqa: ANN401
    """Return one replica's state with a feature at place j."""

    def put(room: Tensor, value: Tensor) -> Tensor:
        room = room.clone()
        room[j] = value.to(room)
        return room

    table = state.tables.clone()
    if known.past.sum():
        table[: int(state.places), j] = known.past.to(table) / int(state.places)
    features = (put(*pair) for pair in zip(state.features, known.feature, strict=True))
    views = (put(*pair) for pair in zip(state.views, known.view, strict=True))
    return state._replace(
        features=Feature(*features),
        views=View(*views),
        p_values=put(state.p_values, torch.tensor(known.p_value)),
        tables=table,
    )


def _store_place(state: State, counts: Tensor, gain: Tensor) -> State:
    """Return one replica's state with the tables and the gain of one more place."""
    place = int(state.places)
    table, gains = state.tables.clone(), state.gains.clone()
    if place == MOST_PLACES:  # the two oldest places become one
        table = torch.cat([table[:1] + table[1:2], table[2:], 0 * table[:1]])
        gains = torch.cat([gains[1:], 0 * gains[:1]])
        place -= 1
    table[place, : len(counts)] = counts.to(table)
    gains[place] = gain.to(gains)
    return state._replace(
        tables=table, gains=gains, places=torch.tensor(float(place + 1))
    )
