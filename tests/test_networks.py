"""Networks on a flat vector give what the usual modules give."""

import dataclasses
import json
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.memory import list_state_tensors
from cirm.networks import (
    CHUNK,
    MLP,
    NETWORKS,
    ModuleNetwork,
    build_network,
    restore_network,
)
from cirm.randomness import Randomness
from cirm.variational import DiagonalGaussian

SEEDS = (3, 5)
INPUTS = Randomness(SEEDS, ("inputs",)).normal(7, 4)
IMAGES = Randomness(SEEDS, ("images",)).normal(6, 2, 8, 8)


def cnn():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(5, 2),
    )


LAYERS = {"hidden": (6, 5), "activation": "elu", "dropout": 0.0}
CASES = {
    "linear": (MLP((4, 2)), INPUTS),
    "mlp": (MLP((4, 6, 5, 3)), INPUTS),
    "dropping mlp": (MLP((4, 6, 5, 3), "relu", 0.5), INPUTS),
    "cnn": (ModuleNetwork(cnn(), reset=True), IMAGES),
    "layernorm": (build_network("layernorm", (4,), 3, LAYERS), INPUTS),
}
each_network = pytest.mark.parametrize(("network", "inputs"), CASES.values(), ids=CASES)
each_noisy = pytest.mark.parametrize(
    ("network", "inputs"), [CASES["dropping mlp"], CASES["cnn"]], ids=["mlp", "cnn"]
)


def noise(seeds=SEEDS):
    return Randomness(seeds, ("noise",)).start_draws()


@pytest.mark.parametrize(
    ("activation", "layer"),
    [("elu", nn.ELU), ("relu", nn.ReLU), ("linear", nn.Identity)],
)
def test_an_mlp_equals_the_same_weights_in_sequential_layers(activation, layer):
    network = MLP((4, 6, 5, 3), activation)
    params = Randomness(SEEDS).normal(network.size)
    usual = nn.Sequential(
        nn.Linear(4, 6), layer(), nn.Linear(6, 5), layer(), nn.Linear(5, 3)
    )
    outputs = network(params, INPUTS)
    for replica in range(len(SEEDS)):
        linear = usual[::2]
        for part, (weight, bias) in zip(
            linear, network.split_parameters_into_layers(params), strict=True
        ):
            part.weight.data, part.bias.data = weight[replica].T, bias[replica, 0]
        torch.testing.assert_close(outputs[replica], usual(INPUTS[replica]))


def test_an_mlp_flattens_the_features_of_an_example():
    network = MLP((128, 5, 2))
    params = network.init(Randomness(SEEDS))
    flat = IMAGES.reshape(2, 6, 128)
    torch.testing.assert_close(network(params, IMAGES), network(params, flat))


def test_many_examples_give_what_a_few_at_a_time_give():
    network, count = MLP((4, 3, 2)), 2 * CHUNK + 5
    params = network.init(Randomness(SEEDS)).requires_grad_()
    inputs = Randomness(SEEDS).normal(count, 4)
    sharp = DiagonalGaussian(params, torch.full_like(params, -40.0))
    whole = network(params, inputs)
    few = torch.cat([network(params, x) for x in inputs.split(1000, 1)], 1)
    torch.testing.assert_close(whole, few)
    for outputs in (whole, network.sample_outputs(sharp, inputs, noise(), 1)[:, 0]):
        assert outputs.shape == (2, count, 2)
        torch.testing.assert_close(
            torch.autograd.grad(outputs.square().sum(), params, retain_graph=True),
            torch.autograd.grad(few.square().sum(), params, retain_graph=True),
            rtol=1e-4,
            atol=1e-4,
        )


def test_an_mlp_starts_with_glorot_weights_and_zero_biases():
    network = MLP((40, 60, 2))
    params = network.init(Randomness((1,)))
    (weight, bias), (_, last) = network.split_parameters_into_layers(params)
    limit = (6 / 100) ** 0.5
    assert 0.98 * limit < weight.abs().max() <= limit
    torch.testing.assert_close(
        weight.std(), torch.tensor(limit / 3**0.5), rtol=0.05, atol=0
    )
    assert not bias.any() and not last.any()


def test_dropout_keeps_the_expectation_of_what_the_head_gets():
    network, copies = MLP((4, 6, 2), dropout=0.75), 40_000
    params = network.init(Randomness((3,)))
    inputs = INPUTS[:1, :1].expand(1, copies, 4)
    features = network.compute_features(params, inputs, noise((3,)))
    exact = network.compute_features(params, inputs[:, :1])
    kept = features != 0
    assert abs(kept.float().mean() - 0.25) < 0.01
    torch.testing.assert_close(features[kept], (4 * exact).expand_as(features)[kept])
    torch.testing.assert_close(
        features.mean(1), exact[:, 0], rtol=0, atol=5 * 2 * exact.max() / copies**0.5
    )


@each_network
def test_replicas_do_not_mix(network, inputs):
    params = network.init(Randomness(SEEDS))
    together = network(params, inputs, noise())
    alone = network(params[1:], inputs[1:], noise(SEEDS[1:]))
    torch.testing.assert_close(together[1:], alone)
    params.requires_grad_()
    (slope,) = torch.autograd.grad(network(params, inputs)[0].sum(), params)
    assert slope[0].any() and not slope[1].any()


@each_network
def test_initial_parameters_depend_on_the_seed_alone(network, inputs):
    params = network.init(Randomness((3, 5, 3)))
    assert params.shape == (3, network.size)
    assert torch.equal(params[0], params[2])
    assert torch.equal(params[1:2], network.init(Randomness((5,))))
    assert (params[0] != params[1]).float().mean() > 0.5


@each_network
def test_the_head_is_linear_in_the_features(network, inputs):
    params = network.init(Randomness(SEEDS))
    features = network.compute_features(params, inputs)
    length = features.shape[-1] * network.outputs
    weight, bias = params[:, network.head].split([length, network.outputs], -1)
    weight = weight.unflatten(-1, (-1, network.outputs))
    expected = features @ weight + bias.unsqueeze(1)
    torch.testing.assert_close(network(params, inputs), expected)
    assert network.head.stop == network.size


@each_network
def test_outputs_change_linearly_with_the_head(network, inputs):
    params = network.init(Randomness(SEEDS))
    other = params.clone()
    other[:, network.head] = Randomness(SEEDS).normal(network.size)[:, network.head]
    between = torch.lerp(params, other, 0.3)
    expected = torch.lerp(network(params, inputs), network(other, inputs), 0.3)
    torch.testing.assert_close(network(between, inputs), expected)


@each_noisy
def test_dropout_depends_on_its_draws_and_on_nothing_else(network, inputs):
    params = network.init(Randomness(SEEDS))
    torch.manual_seed(1)
    first = network(params, inputs, noise())
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = network(params, inputs, noise())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    source = noise()
    assert not torch.equal(
        network(params, inputs, source), network(params, inputs, source)
    )


@each_noisy
def test_without_noise_nothing_drops_out(network, inputs):
    params = network.init(Randomness(SEEDS))
    network(params, inputs, noise())
    assert torch.equal(network(params, inputs), network(params, inputs))


def test_a_module_network_equals_its_module():
    module = cnn()
    network = ModuleNetwork(module)
    params = network.init(Randomness(SEEDS))
    outputs = network(params, IMAGES)
    module.eval()
    torch.testing.assert_close(outputs[-1], module(IMAGES[-1]))
    assert outputs.shape == (2, 6, 2)
    assert network.size == sum(p.numel() for p in module.parameters())


def test_a_module_gets_gradients_in_every_parameter():
    network = ModuleNetwork(cnn())
    params = network.init(Randomness(SEEDS)).requires_grad_()
    outputs = network(params, IMAGES)
    (slope,) = torch.autograd.grad(outputs.square().sum(), params)
    step = 1e-2 * F.normalize(slope, dim=-1)
    with torch.no_grad():
        ahead = network(params + step, IMAGES).square().sum((1, 2))
        behind = network(params - step, IMAGES).square().sum((1, 2))
    torch.testing.assert_close(
        (ahead - behind) / 2, (slope * step).sum(-1), rtol=0.02, atol=0
    )


def test_attention_is_drawn_anew_for_each_seed():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2))
    network = ModuleNetwork(module, reset=True)
    params = network.init(Randomness(SEEDS))
    weights = sum(p.numel() for p in network.module.parameters() if p.ndim > 1)
    assert (params[0] != params[1]).sum() >= weights
    sentences = Randomness(SEEDS).normal(6, 3, 4)
    assert network(params, sentences).shape == (2, 6, 2)


def test_initialising_a_module_leaves_the_global_source_alone():
    network = ModuleNetwork(cnn(), reset=True)
    before = torch.get_rng_state()
    network.init(Randomness(SEEDS))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_keeps_its_own_weights_and_is_never_changed():
    module = cnn()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = ModuleNetwork(module)
    params = network.init(Randomness(SEEDS))
    assert torch.equal(params[0], params[1])
    network(params + 1, IMAGES, Randomness(SEEDS).start_draws())
    ModuleNetwork(module, reset=True).init(Randomness(SEEDS))
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(p.requires_grad for p in module.parameters())


def test_batch_normalisation_runs_with_its_stored_statistics():
    norm = nn.BatchNorm1d(3)
    module = nn.Sequential(nn.Linear(4, 3), norm, nn.Linear(3, 2))
    norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    network = ModuleNetwork(module)
    inputs = Randomness((0,)).normal(5, 4)
    params = network.init(Randomness((0,)))
    in_training = network(params, inputs, Randomness((0,)).start_draws())
    module.eval()
    torch.testing.assert_close(in_training[0], module(inputs[0]))
    assert torch.equal(network.module[1].running_mean, norm.running_mean)


def test_batch_normalisation_without_statistics_is_refused():
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    with pytest.raises(ValueError, match="BatchNorm1d has no running statistics"):
        ModuleNetwork(nn.Sequential(nn.Linear(4, 3), norm, nn.Linear(3, 2)))


@pytest.mark.parametrize("key", ["erm", "vcl", "bvirm", "irmg"])
def test_learners_start_from_the_weights_of_a_module(key):
    """Also those that draw around the initial parameters, or have several members."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    place = Environment("a", INPUTS[0], torch.arange(7) % 2, Task.classification(2))
    network = ModuleNetwork(module, frozen=["0."])
    learner = dataclasses.replace(create(key, place), network=network)
    state = learner.init(Randomness(SEEDS))
    start = network.init(Randomness((0,)))[0]
    means = [t for t in list_state_tensors(state) if t.shape[-1:] == (network.size,)]
    assert any((mean == start).all(-1).any() for mean in means)


@pytest.mark.parametrize("by_name", [True, False])
def test_frozen_parameters_are_constants_and_not_in_the_flat_vector(by_name):
    module = cnn()
    first = next(iter(dict(module.named_parameters())))
    if not by_name:
        dict(module.named_parameters())[first].requires_grad_(False)
    network = ModuleNetwork(module, frozen=[first] if by_name else [])
    weights = dict(module.named_parameters())[first]
    assert network.size == ModuleNetwork(cnn()).size - weights.numel()
    params = network.init(Randomness((0,)))
    module.eval()
    torch.testing.assert_close(network(params, IMAGES[:1])[0], module(IMAGES[0]))
    assert "constants" in network.describe()


def test_a_frozen_head_or_an_unknown_name_is_refused():
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with pytest.raises(ValueError, match="last linear layer of the network is frozen"):
        ModuleNetwork(module, frozen=["1."])
    with pytest.raises(ValueError, match="no layer or parameter 'conv'"):
        ModuleNetwork(module, frozen=["conv"])


@pytest.mark.parametrize("name", ["conv1", "conv1.", "conv1.weight"])
def test_a_frozen_layer_does_not_freeze_others_whose_name_begins_alike(name):
    parts = {"conv1": nn.Linear(4, 3), "conv10": nn.Linear(3, 3)}
    module = nn.Sequential(OrderedDict(parts, out=nn.Linear(3, 2)))
    network = ModuleNetwork(module, frozen=[name])
    trained = set(network.describe()["parameters"])
    assert {"conv10.weight", "conv10.bias", "out.weight", "out.bias"} <= trained
    assert ("conv1.bias" in trained) == (name == "conv1.weight")
    assert "conv1.weight" not in trained


SHAPE = {"hidden": (6,), "activation": "relu", "dropout": 0.25}


@pytest.mark.parametrize("side", [4, 8, 14, 28, 32])
def test_the_convolutional_network_takes_images_of_any_size(side):
    network = build_network("cnn", (3, side, side), 2, SHAPE)
    params = network.init(Randomness(SEEDS))
    assert not torch.equal(params[0], params[1])
    images = Randomness(SEEDS).normal(5, 3, side, side)
    assert network(params, images).shape == (2, 5, 2)
    assert network.compute_features(params, images).shape == (2, 5, 6)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_by_name_survives_being_described(name):
    network = build_network(name, (2, 8, 8), 3, SHAPE)
    again = restore_network(json.loads(json.dumps(network.describe())))
    params = network.init(Randomness(SEEDS))
    images = Randomness(SEEDS).normal(4, 2, 8, 8)
    assert torch.equal(network(params, images), again(params, images))
    assert again.describe() == network.describe()


def test_the_linear_network_has_no_hidden_layer():
    assert build_network("linear", (2, 3), 4, SHAPE) == MLP((6, 4))


def test_a_convolutional_network_of_columns_is_refused():
    with pytest.raises(ValueError, match=r"cnn needs images .* Use network=mlp"):
        build_network("cnn", (7,), 2, SHAPE)


def test_an_unknown_network_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no network 'tree'.*mlp, cnn, linear"):
        build_network("tree", (7,), 2, SHAPE)


def test_a_restored_module_must_have_the_same_constants():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    description = ModuleNetwork(module).describe()
    assert restore_network(description, module).describe() == description
    module[1].running_mean.add_(1)
    with pytest.raises(ValueError, match="running statistics of the given network"):
        restore_network(description, module)


@pytest.mark.parametrize(
    "module", [nn.Flatten(), nn.Sequential(nn.Linear(4, 2, bias=False))]
)
def test_a_module_without_a_linear_head_is_refused(module):
    with pytest.raises(ValueError, match="last layer of the network must be"):
        ModuleNetwork(module)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sizes": (4,)},
            r"layers are \[4\]. Give two or more positive numbers",
        ),
        ({"sizes": (4, 0, 2)}, "Give two or more positive numbers"),
        ({"sizes": (4, 2), "dropout": 1.0}, "at least 0 and less than 1, but is 1"),
        (
            {"sizes": (4, 2), "activation": "tanh"},
            "one of elu, relu, linear, but is 'tanh'",
        ),
    ],
)
def test_an_impossible_mlp_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MLP(**settings)


@pytest.mark.parametrize(
    "network", [MLP((4, 2)), MLP((4, 6, 5, 3)), ModuleNetwork(nn.Linear(4, 2))]
)
def test_without_spread_samples_are_the_network_itself(network):
    params = network.init(Randomness(SEEDS))
    q = DiagonalGaussian(params, torch.full_like(params, -40.0))
    expected = network(params, INPUTS).unsqueeze(1).expand(-1, 3, -1, -1)
    torch.testing.assert_close(network.sample_outputs(q, INPUTS, noise(), 3), expected)


@each_network
def test_predictions_use_the_same_draws_for_any_inputs_and_replicas(network, inputs):
    params = network.init(Randomness(SEEDS))
    q = DiagonalGaussian(params, torch.full_like(params, -1.0))
    outputs = network.sample_outputs_with_fixed_noise(q, inputs, 4)
    assert outputs.shape == (2, 4, inputs.shape[1], network.outputs)
    alone = network.sample_outputs_with_fixed_noise(
        DiagonalGaussian(*(part[1:] for part in q)), inputs[1:, 2:4], 4
    )
    torch.testing.assert_close(outputs[1:, :, 2:4], alone)
    assert (outputs.std(1) > 0).all()


def test_sums_drawn_locally_have_the_moments_of_drawn_weights():
    network, draws = MLP((4, 3)), 4_000
    params = network.init(Randomness((3,)))
    q = DiagonalGaussian(params, torch.full_like(params, -1.0))
    local = network.sample_outputs(q, INPUTS[:1], noise((3,)), draws)
    by_weights = network.sample_outputs_of_whole_networks(
        q, INPUTS[:1], noise((3,)), draws
    )
    spread = by_weights.std(1)
    bound = 5 * spread.max() * (2 / draws) ** 0.5
    torch.testing.assert_close(local.mean(1), by_weights.mean(1), rtol=0, atol=bound)
    torch.testing.assert_close(local.std(1), spread, rtol=0.08, atol=0)
