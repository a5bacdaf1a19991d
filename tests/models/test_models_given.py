"""Networks as users have them: a module, a class, a function; recurrent, attending, looking up; and wrong ones."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import posterity
from posterity.models import as_network, build, wrap

SMALL = {"dataset": "digits", "clients": 3, "rounds": 1, "subset": 90, "evaluate_every": 1}


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.top = nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x):
        return self.top(torch.relu(self.body(x.flatten(1))))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.GRU, **how):
        super().__init__()
        self.rnn, self.fc = kind(8, 6, batch_first=True, **how), nn.Linear(6, 10)

    def forward(self, x):
        return self.fc(self.rnn(x[:, 0])[0][:, -1])


class Attending(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.attend, self.fc = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        rows = x[:, 0]
        return self.fc(self.attend(rows, rows, rows)[0].mean(1))


class Encoder(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.encoder(x[:, 0]).mean(1))


class Words(nn.Module):
    def __init__(self, classes, words: int = 17):
        super().__init__()
        self.embed, self.fc = nn.Embedding(words, 6), nn.Linear(6, classes)

    def forward(self, x):
        return self.fc(self.embed(x.flatten(1)).mean(1))


def both(model, **more):
    """The same run one client at a time and with many at once, in float64."""
    return [posterity.run(method="fedper", model=model, engine=e, dtype="float64", **{**SMALL, **more}).metric("nll")
            for e in ("oracle", "stacked")]  # fmt: skip


# --- forms --------------------------------------------------------------------------------------------------
def test_a_plain_module_is_enough_and_keeps_its_weights():
    net = Plain()
    found = posterity.run(method="fedavg", model=net, **SMALL)
    assert torch.equal(found.setup.sim.initial["top.weight"], net.top.weight)
    assert found.setup.sim.model.heads == ("top",)
    assert any("the seed does not move them" in note for note in found.setup.notes)


def test_a_class_is_drawn_from_the_seed():
    first, again, other = (
        posterity.run(method="fedavg", model=Plain, seed=seed, data_seed=0, **SMALL).setup.sim for seed in (0, 0, 1)
    )
    assert torch.equal(first.initial["body.weight"], again.initial["body.weight"])
    assert not torch.equal(first.initial["body.weight"], other.initial["body.weight"])
    assert first.model.notes == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(4, 3)),
        lambda shape, classes: nn.Sequential(nn.Linear(shape[0], classes)),
        lambda size, outputs: nn.Sequential(nn.Linear(size[0], outputs)),
        lambda classes, shape: nn.Sequential(nn.Linear(shape[0], classes)),
        lambda in_features, num_classes: nn.Sequential(nn.Linear(in_features, num_classes)),
    ],
)
def test_makers_take_what_they_name(make):
    assert as_network(make, (4,), 3).heads == ("0",)


def test_a_maker_that_needs_more_is_told_how():
    def make(shape, classes, depth):
        return nn.Sequential(*[nn.Linear(shape[0], shape[0]) for _ in range(depth)], nn.Linear(shape[0], classes))

    with pytest.raises(ValueError, match=r"needs 'depth'.*--set model.depth=VALUE"):
        as_network(make, (4,), 3)
    assert as_network(make, (4,), 3, options={"depth": "2"}).heads == ("2",)


def test_a_lazy_network_takes_its_shapes_from_the_data():
    model = as_network(lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3)), (4,), 3)
    assert model.init(0)["0.weight"].shape == (5, 4)
    assert model.notes == ()


def test_a_run_goes_on_with_the_network_that_it_had_and_with_no_other(tmp_path):
    net = Plain()
    begun = posterity.run(method="fedper", model=net, out=tmp_path / "run", **SMALL)
    assert posterity.load(tmp_path / "run", model=net).metric("nll") == begun.metric("nll")
    with pytest.raises(ValueError, match=r"was begun with the network 'Plain'.*one with other weights"):
        posterity.load(tmp_path / "run", model=Plain())
    with pytest.raises(
        ValueError, match=r"was begun with the network 'Plain' with 910 numbers; here it is 'mlp'.*model=…"
    ):
        posterity.load(tmp_path / "run")


# --- kinds of layers ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_networks_run_in_the_loop_and_say_why(kind):
    found = posterity.run(method="fedper", model=lambda: Recurrent(kind), **SMALL)
    assert found.setup.engine.name == "loop"
    assert kind.__name__ in found.setup.remark
    assert found.metric("nll") < 5
    plain = posterity.run(method="fedper", model=lambda: Recurrent(kind), engine="oracle", **SMALL)
    assert found.metric("nll") == pytest.approx(plain.metric("nll"), rel=1e-5)


@pytest.mark.parametrize("kind", [Attending, Encoder])
def test_attention_is_stacked(kind, recwarn):
    one, many = both(kind)
    assert one == pytest.approx(many, rel=1e-9)
    assert not [w for w in recwarn if "performance drop" in str(w.message)]


def write_words(folder, kind):
    """Sentences of six words; the first says what the label is."""
    draw = np.random.default_rng(0)
    x, client = draw.integers(0, 17, (90, 6)), np.arange(90) % 3
    y = (x[:, 0] > 8).astype(int)
    if kind == "npz":
        np.savez(folder / "words.npz", x=x, y=y, client=client)
        return {"dataset": str(folder / "words.npz")}
    lines = [",".join([f"w{i}" for i in range(6)] + ["label", "site"])]
    lines += [",".join(map(str, [*row, label, site])) for row, label, site in zip(x, y, client, strict=True)]
    (folder / "words.csv").write_text("\n".join(lines) + "\n")
    return {"dataset": str(folder / "words.csv"), "target": "label", "client_column": "site"}


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_embeddings_take_the_integers_of_a_file(tmp_path, kind):
    setting = {**write_words(tmp_path, kind), "method": "fedper", "model": Words, "rounds": 1}
    if kind == "csv":
        with pytest.raises(ValueError, match=r"data\.scale=none"):
            posterity.run(**setting)
        setting["set"] = {"data.scale": "none"}
    one, many = (posterity.run(engine=e, dtype="float64", **setting) for e in ("oracle", "stacked"))
    assert one.metric("nll") == pytest.approx(many.metric("nll"), rel=1e-9)
    assert one.setup.sim.model.integers
    plain = posterity.run(**{**setting, "model": "mlp"})  # the same file for a network that takes any numbers
    assert plain.metric("nll") > 0
    assert posterity.run(precision="bf16", **setting).metric("nll") > 0
    if kind == "npz":
        assert not one.federation.x.is_floating_point()


def test_integers_stay_exact():
    """2²⁴ + 1 is no float32."""
    x = torch.tensor([[2**24], [2**24 + 1]]).repeat(8, 1)
    model = as_network(lambda: Parity(), (1,), 2, x=x)
    assert model.integers
    assert model.logits(model.init(0), x).argmax(-1).tolist() == [0, 1] * 8


class Parity(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.fc.weight.data, self.fc.bias.data = 3 * torch.eye(2), torch.zeros(2)

    def forward(self, x):
        return self.fc(F.one_hot(x[:, 0] % 2, 2).to(self.fc.weight.dtype))


# --- weights ------------------------------------------------------------------------------------------------
class Bare(Plain):
    """A parameter without a reset."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(12))

    def forward(self, x):
        return self.top(torch.relu(self.body(x.flatten(1)) + self.shift))


@pytest.mark.parametrize(("net", "odd"), [(Bare, "shift"), (Attending, "")])
def test_what_the_seed_does_not_move_is_named(net, odd):
    shape = (1, 8, 8)
    assert as_network(net, shape, 10).notes == ()  # made anew: all of it is drawn
    head = "top" if net is Bare else "fc"
    notes = as_network(wrap(net(), head, 10, shape=shape), shape, 10).notes
    assert ("shift" in "".join(notes)) == bool(odd)
    assert not any("in_proj" in note for note in notes)


def test_makers_that_draw_elsewhere_are_seeded_or_refused():
    def by_numpy():
        net = Plain()
        net.body.weight.data += torch.from_numpy(np.random.randn(12, 64)).float() + random.random()
        return net

    assert as_network(by_numpy, (1, 8, 8), 10).notes == ()
    stream = torch.Generator()

    def by_itself():
        net = Plain()
        net.body.weight.data += torch.randn(12, 64, generator=stream)
        return net

    with pytest.raises(ValueError, match=r"twice with the same seed.*body.weight"):
        as_network(by_itself, (1, 8, 8), 10)


# --- draws --------------------------------------------------------------------------------------------------
class Noisy(Plain):
    def forward(self, x):
        return self.top(F.dropout(self.body(x.flatten(1)), 0.3, self.training))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Attending(0.1), "attend: MultiheadAttention draws from the global generator"),
        (lambda: Encoder(0.1), "encoder.self_attn: MultiheadAttention draws from the global generator"),
        (lambda: Recurrent(nn.GRU, num_layers=2, dropout=0.2), "rnn: GRU runs a fused kernel"),
        (Noisy, r"its forward"),
    ],
)
def test_a_network_that_draws_by_itself_is_refused_by_name(make, named):
    for given in (make, make()):
        with pytest.raises(ValueError, match=rf"draws random numbers by itself in training \({named}"):
            as_network(given, (1, 8, 8), 10)


def test_a_wrapped_one_too_though_it_could_not_be_stacked():
    model = wrap(Recurrent(nn.GRU, num_layers=2, dropout=0.2), "fc", 10)
    with pytest.raises(ValueError, match="draws random numbers by itself"):
        posterity.run(method="fedavg", model=model, **SMALL)


def test_keyed_dropout_and_an_encoder_without_its_attention_dropout_repeat_their_bits():
    def make():
        net = Encoder(0.1)
        net.encoder.self_attn.dropout = 0.0
        return net

    ends = [posterity.run(method="fedavg", model=make, **SMALL).state.params["fc.weight"] for _ in range(2)]
    assert torch.equal(*ends)


# --- what is wrong is said in a sentence --------------------------------------------------------------------
def output(change):
    class Net(Plain):
        def forward(self, x):
            return change(super().forward(x))

    return Net


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), r"batch \(2, 1, 8, 8\), returned outputs of shape \(2, 5\); "
                                                        r"expected \(2, 10\): one logit for each class"),
        (nn.Sequential(nn.Linear(64, 10)), r"does not run on inputs of shape \(1, 8, 8\), 0 to 0: "),
        (output(lambda y: (y, 1)), r"returned a tuple; expected one tensor \(2, 10\)"),
        (output(lambda y: y.softmax(-1)), "probabilities .*leave the softmax out"),
        (output(torch.tanh), r"does not say where its head begins: something happens after.*'top'.*model.head=NAME"),
        (lambda: 3, "must return an nn.Module"),
        (3.5, "model is a float; expected a name, an nn.Module, or a class or function"),
        (lambda: nn.Linear("a", 2), r"test_models_given.py, line \d+, in <lambda>.*raised"),
    ],
)  # fmt: skip
def test_sentences(given, text):
    with pytest.raises(ValueError, match=text) as caught:
        as_network(given, (1, 8, 8), 10)
    assert "\n" not in str(caught.value)


def test_a_log_softmax_at_the_end_does_no_harm():
    assert as_network(output(lambda y: y.log_softmax(-1)), (1, 8, 8), 10).heads == ("top",)


def test_integers_out_of_range_and_numbers_that_are_none():
    ids = torch.arange(40).reshape(8, 5)
    with pytest.raises(ValueError, match=r"inputs of shape \(5,\), 0 to 39: .*IndexError"):
        as_network(Words, (5,), 3, x=ids)
    assert as_network(lambda: Words(3, 40), (5,), 3, x=ids.float()).integers
    with pytest.raises(ValueError, match=r"takes integers.*the data hold 0.5.*data.scale=none"):
        as_network(lambda: Words(3, 40), (5,), 3, x=ids + 0.5)


def test_a_model_for_other_data_is_refused():
    model = wrap(nn.Sequential(nn.Linear(4, 3)), "0", 3, shape=(4,))
    with pytest.raises(ValueError, match=r"inputs of shape \(4,\); the data have \(5,\)"):
        as_network(model, (5,), 3)
    with pytest.raises(ValueError, match="for 3 classes; the data have 4"):
        as_network(model, (4,), 4)


# --- options ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "option", "value", "text"),
    [
        ("mlp", "hidden", "abc", "model.hidden takes numbers such as 32,16; 'abc' was given"),
        ("mlp", "hidden", "0", r"model.hidden takes sizes of 1 or more; \(0,\) was given \(--model linear"),
        ("mlp", "hidden", "32,-16", r"model.hidden takes sizes of 1 or more; \(32, -16\) was given"),
        ("mlp_bn", "dropout", "nan", "model.dropout takes a share from 0 to 1; nan was given"),
        ("mlp", "dropout", "-0.5", "model.dropout takes a share from 0 to 1; -0.5 was given"),
        ("cnn", "feature_dim", "0", "model.feature_dim takes sizes of 1 or more; 0 was given"),
        ("resnet20", "width", "-4", "model.width takes sizes of 1 or more; -4 was given"),
        ("mlp", "norm", "maybe", "model.norm takes true or false; 'maybe' was given"),
        ("mlp", "dropout", "much", "model.dropout takes a number; 'much' was given"),
        ("cnn", "feature_dim", "1.5", "model.feature_dim takes a whole number; '1.5' was given"),
    ],
)
def test_options_are_read_as_declared(name, option, value, text):
    with pytest.raises(ValueError, match=text):
        posterity.run(method="fedavg", model=name, set={f"model.{option}": value}, **SMALL)


def test_options_that_are_right():
    assert build("mlp", (4,), 2, hidden="8,5").init(0)["base.fc2.weight"].shape == (5, 8)
    assert build("mlp", (4,), 2, hidden=8).feature_dim == 8
    assert build("mlp", (4,), 2, hidden=[8, 3], norm="true").norms
