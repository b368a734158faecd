"""How sure the stable model of steady may be, and where its networks start."""

from types import SimpleNamespace

import pytest
import torch

from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_adapt import do_gains_outweigh_losses
from cirm.learners.steady.directions_stable import RowsWithKnownFeatures
from cirm.learners.steady.directions_start import choose_start_networks_of_ensemble


def draw_logits_and_labels(noise, n=20_000, classes=2):
    """Return half the true logits, and labels of which a share is random."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(n, classes, generator=generator).double()
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    other = torch.randint(classes, (n,), generator=generator)
    is_random = torch.rand(n, generator=generator) < noise
    return logits / 2, torch.where(is_random, other, labels)


@pytest.mark.parametrize(("noise", "classes"), [(0.0, 2), (0.5, 2), (0.3, 5)])
def test_a_calibration_finds_the_share_of_random_labels(noise, classes):
    logits, labels = draw_logits_and_labels(noise, classes=classes)
    calibration = tables.fit_logit_calibration(logits, torch.zeros_like(logits), labels)
    most = int(calibration[:, 1].argmax())
    assert tables.NOISE[most] == pytest.approx(noise, abs=0.101)
    assert float(calibration[:, 1].sum()) == pytest.approx(1)
    if not noise:
        assert float(calibration[0, 0]) == pytest.approx(2, rel=0.2)


def test_calibrated_beliefs_are_right_as_often_as_they_say():
    logits, labels = draw_logits_and_labels(0.5)
    calibration = tables.fit_logit_calibration(logits, torch.zeros_like(logits), labels)
    beliefs = tables.calibrate_logits(logits, calibration).softmax(-1)
    for low, high in ((0.5, 0.6), (0.6, 0.7), (0.7, 0.8)):
        sure, answers = beliefs.max(-1)
        rows = (sure > low) & (sure <= high)
        right = float((answers == labels)[rows].double().mean())
        assert right == pytest.approx(float(sure[rows].mean()), abs=0.03)


def test_a_calibration_keeps_answers_and_finite_logits():
    logits = torch.tensor([[900.0, -900.0], [0.1, 0.0], [-3.0, 3.0]])
    calibration = torch.zeros(len(tables.NOISE), 2)
    calibration[0] = torch.tensor([1.0, 1.0])
    calibrated = tables.calibrate_logits(logits, calibration)
    assert bool(calibrated.isfinite().all())
    assert calibrated.argmax(-1).tolist() == [0, 0, 1]
    assert calibrated[2].tolist() == pytest.approx([-3, 3], abs=1e-4)


def test_losses_weigh_four_times_and_by_their_probability():
    gains = torch.tensor([1.0, -1.0])
    assert do_gains_outweigh_losses(gains, torch.tensor([0.81, 0.19]))
    assert not do_gains_outweigh_losses(gains, torch.tensor([0.79, 0.21]))


@pytest.mark.parametrize(
    ("plain", "is_hidden", "chosen"),
    [(4.0, True, 4.0), (0.0, True, 1.0), (4.0, False, 1.0)],
)
def test_networks_start_beside_plain_answers_unless_these_tell_more(
    plain, is_hidden, chosen
):
    # A network is a factor of the inputs, which are the label with noise.
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(2, (400,), generator=generator)
    signal = 2 * targets - 1 + torch.randn(400, generator=generator)
    noise = torch.randn(400, generator=generator)

    def model(params, inputs, _):
        kept = torch.where(params[:, :1] == 4, signal, noise)
        return torch.stack([-kept, kept + 9], -1)  # with a level that says nothing

    state = SimpleNamespace(
        members=torch.full((1, 1, 1), plain),
        beside=torch.ones(1, 1, 1),
        found=torch.zeros(1),
        places=torch.ones(1),
    )
    outcome = SimpleNamespace(
        found=[None], is_hidden=[is_hidden], is_changed_axis_constant=False
    )
    rows = RowsWithKnownFeatures(
        targets[None], targets, torch.zeros(400).long(), [is_hidden], 2
    )
    start = choose_start_networks_of_ensemble(
        model,
        state,
        torch.zeros(1, 1, 1),
        [outcome],
        torch.zeros(1, 400, 1),
        [rows],
    )
    assert float(start) == chosen
