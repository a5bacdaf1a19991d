"""Networks that compute in bfloat16: parameters, gradients, statistics and outputs stay as they are."""

import pytest
import torch
from torch.func import grad, vmap

import posterity
from posterity import models

SHAPES = {"mlp": (1, 8, 8), "mlp_bn": (1, 8, 8), "lenet5": (1, 28, 28), "resnet20": (3, 16, 16)}
SMALL = {"dataset": "digits", "clients": 4, "rounds": 2, "subset": "20%", "device": "cpu"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.everything if n == "resnet20" else ()) for n in SHAPES]
)
def test_outputs_and_gradients_are_near_those_of_float32(name):
    full = models.build(name, SHAPES[name], 10)
    low, params = full.with_compute_dtype(torch.bfloat16), full.init(0)
    x = torch.randn(6, *SHAPES[name], generator=torch.Generator().manual_seed(0))
    found = []
    for model in (full, low):
        output, buffers = model(params, x, train=True, mask=torch.ones(6))
        slopes = grad(lambda p: model(p, x)[0].logsumexp(-1).sum())(params)  # noqa: B023
        found.append({"output": output, **buffers, **{f"slope {n}": slopes[n] for n in full.head_names}})
    assert not torch.equal(found[0]["output"], found[1]["output"])  # it does compute in something else
    for key, wanted in found[0].items():
        assert found[1][key].dtype == torch.float32
        assert float((found[1][key] - wanted).norm()) <= 0.1 * float(wanted.norm()) + 1e-6, key


def test_features_heads_and_changed_layers():
    full = models.build("mlp_bn", (1, 8, 8), 10)
    low, params = full.with_compute_dtype(torch.bfloat16), full.init(0)
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    z, _ = low.features(params, x)
    assert z.dtype == torch.float32
    assert torch.allclose(low.classify(params, z), low.logits(params, x), atol=1e-6)
    seen = []

    def double(x, output):
        seen.extend((x.dtype, output.dtype))
        return 2 * output

    twice = low(params, x, around={full.heads[0]: double})[0]
    assert torch.equal(twice, 2 * low.logits(params, x))
    assert seen == [torch.float32] * 2


def test_clients_stack():
    model = models.build("lenet5", (1, 28, 28), 10).with_compute_dtype(torch.bfloat16)
    params = {n: torch.stack([model.init(0)[n], model.init(1)[n]]) for n in model.leaves}
    x = torch.randn(2, 3, 1, 28, 28, generator=torch.Generator().manual_seed(2))
    together = vmap(model.logits)(params, x)
    alone = model.logits({n: p[1] for n, p in params.items()}, x[1])
    assert torch.allclose(together[1], alone, atol=0.05)


def test_a_run_trains_in_bfloat16():
    runs = [posterity.run(method="pfedvmp", precision=p, **SMALL) for p in ("ieee", "bf16")]
    assert all(p.dtype == torch.float32 for p in runs[1].state.params.values())
    scores = [run.metric("accuracy", show="last") for run in runs]
    assert scores[0] != 0
    assert abs(scores[0] - scores[1]) < 0.1
    with pytest.raises(ValueError, match="precision"):
        posterity.run(method="pfedvmp", precision="bf61", **SMALL)
