"""pfl (Apple's pfl-research): FederatedAveraging on a SimulatedBackend, one process."""

from __future__ import annotations

import time
from itertools import pairwise

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workload import Outcome, Workload, main, make_data, make_network


class Judged(nn.Module):
    """A network with the two functions that pfl asks of it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Clock(TrainingProcessCallback):
    """Notes the end of each round."""

    def __init__(self) -> None:
        self.ends = [time.time()]

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.ends = [time.time()]
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.ends.append(time.time())
        return False, Metrics()


def simulate(work: Workload) -> Outcome:
    x, y = make_data(work)
    module, clock = make_network(work), Clock()

    def visit(client: int) -> Dataset:
        """A client's images in a new order: pfl itself keeps the order it is given."""
        order = torch.randperm(work.images)
        return Dataset((x[client][order], y[client][order]), user_id=str(client))

    data = FederatedDataset(visit, MinimizeReuseUserSampler(list(range(work.clients))))  # takes them in turn
    judged = Judged(module)
    model = PyTorchModel(judged, torch.optim.SGD, torch.optim.SGD(judged.parameters(), lr=1.0))
    plan = NNAlgorithmParams(
        central_num_iterations=work.rounds,
        evaluation_frequency=10**9,  # only the first round, which is not counted, is evaluated
        train_cohort_size=work.clients,
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.lr)
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    FederatedAveraging().run(plan, backend, model, local, callbacks=[clock], send_metrics_to_platform=False)
    seconds = [after - before for before, after in pairwise(clock.ends)]
    return Outcome(clock.ends[0], seconds, module)


if __name__ == "__main__":
    main("pfl", simulate, "pfl")
