"""Which clients run together, and what they begin a visit with: the offer, and a record of their own.

How much a block takes is estimated, and others may use the same device. A block has no effect before it is done, so one
that runs out of memory is simply taken again in halves, and later blocks of the same work are no larger; splitting
changes nothing but the order in which sums are rounded. The round's line says so (`notes`).
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from posterity.core.network import Network
from posterity.core.protocol import Here, Params, Pass, Personal
from posterity.core.tree import Tree, tree_bytes, tree_cat, tree_rows
from posterity.data.federation import Part
from posterity.engine.batches import SMALL, size_classes, width_for, widths
from posterity.engine.cache import send
from posterity.engine.engines import Engine
from posterity.engine.simulation import Simulation, Work, make_stack, select
from posterity.engine.store import Store

SIGNS = ("can't allocate memory", "not enough memory")  # what PyTorch says where the host has no more


def take_blocks(
    sim: Simulation, clients: Tensor, passes: Iterable[Pass], work: Work, take: Callable[[Tensor], None]
) -> None:
    """`take` all clients, a block at a time; where there is no room, in halves from there on.

    `take` may change nothing before its last step that needs memory.
    """
    for block in blocks(sim, clients, passes, work):
        while len(block):
            some = block[: sim.limit.get(work, len(block))]
            if _fits(sim, some, take):
                block = block[len(some) :]
            else:  # here, where the frames that hold tensors of the failed block are gone
                _halve(sim, work, len(some))
                sim.traces.forget()
                free(sim.root.device)


def _halve(sim: Simulation, work: Work, tried: int) -> None:
    """Scoring stacks everybody and training a cohort: what was too much for the one is no limit of the other."""
    sim.limit[work] = most = (tried + 1) // 2
    sim.traces.notes.append(
        f"out of memory in {work} with {tried} clients at once: it goes on with {most} "
        "(sums may be rounded in another order); --memory allows less from the start"
    )


def _fits(sim: Simulation, block: Tensor, take: Callable[[Tensor], None]) -> bool:
    try:
        take(block)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        if len(block) == 1:
            raise too_large(sim.root.device, error) from None
        return False
    return True


def out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in SIGNS)


def too_large(device: torch.device, error: RuntimeError) -> ValueError:
    return ValueError(
        f"one client alone does not fit into the memory of {device}: use a smaller --batch-size or network, end other "
        f"programs there, or use another --device ({str(error).splitlines()[0]})"
    )


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def give_back(sim: Simulation) -> None:
    """Hand the device what PyTorch only keeps for later, if it is beyond `--memory`: another program may need it."""
    if torch.cuda.memory_reserved() > sim.memory:
        torch.cuda.empty_cache()


ACTIVATIONS = 24  # numbers kept per input number of a batch, where nobody has measured it


def able(sim: Simulation) -> Tensor:
    """Clients that may be in a cohort: members with training data."""
    return torch.nonzero(sim.federation.train.counts[: sim.federation.members] > 0)[:, 0]


def blocks(sim: Simulation, clients: Tensor, passes: Iterable[Pass] = (), work: Work = "training") -> Iterator[Tensor]:
    """`clients` from the largest to the smallest, in blocks whose stacked copies fit into the memory allowed."""
    if not len(clients):
        return
    passes, counts = tuple(passes), sim.federation.train.sizes[clients.cpu()]
    order = torch.argsort(counts, descending=True, stable=True)
    clients, counts = clients[send(order, clients.device)], counts[order]
    uneven = int(counts[0]) > SMALL and any(_grows(sim, each) for each in passes)
    alike = _alike(sim, counts.tolist()) if uneven else [len(clients)]
    for some in torch.split(clients, alike):
        yield from torch.split(some, _fitting(sim, some.cpu(), passes, work))


def _alike(sim: Simulation, counts: list[int]) -> list[int]:
    """How many clients of falling sizes share a block, if all of a block cost what its largest does."""
    classes = widths(sim.federation.train, sim.root.device, sim.traces) or size_classes(counts)
    return [len(list(some)) for _, some in groupby(counts, partial(width_for, known=classes))]


def _grows(sim: Simulation, each: Pass) -> bool:
    """Whether a step of this pass holds kernels: all rows of a client with all rows, padding included."""
    if each.batch is not None or each.scratch is None:
        return False
    return each.scratch(2 * SMALL, sim.model) > 3 * each.scratch(SMALL, sim.model)


def _fitting(sim: Simulation, ids: Tensor, passes: tuple[Pass, ...], work: Work) -> int:
    room = sim.memory // 2 if sim.root.is_cuda else sim.memory  # recordings of a GPU have memory of their own
    return max(1, min(sim.limit.get(work, len(ids)), room // declared_bytes(sim, ids, passes)))


def declared_bytes(sim: Simulation, ids: Tensor, passes: Iterable[Pass]) -> int:
    """What one of these clients takes in these passes, by what they declare, if all are as large as the largest."""
    sample = sim.federation.x[0].numel() * sim.federation.x.element_size()
    held, row = tree_bytes(sim.initial), 2 * sim.sample or ACTIVATIONS * sample
    widest = _widest(sim, sim.federation.train, ids)
    walks = tuple(passes) or sim.passes()  # a prediction alone holds no more than training does
    return max([p.copies * held + row * (p.batch or widest) + _scratch(sim, p, ids) for p in walks]
               or [8 * held + row])  # fmt: skip


def footprint(model: Network, x: Tensor, params: Params) -> int:
    """Bytes that one sample leaves behind for the backward pass: a few for an MLP, a thousand an input for a ResNet."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor.detach()  # a node that kept its own result as it is would never be freed, nor the data it saw

    leaves = {n: p.detach().requires_grad_(p.is_floating_point()) for n, p in params.items()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(leaves, x, mask=x.new_ones(len(x)), train=True, key=torch.zeros(2, dtype=torch.int64, device=x.device))
    for p in leaves.values():
        kept.pop(p.data_ptr(), None)
    return sum(kept.values()) // len(x)


def _scratch(sim: Simulation, each: Pass, ids: Tensor) -> int:
    """Bytes that a pass declares for one client, as if all were as large as the largest."""
    if each.scratch is None:
        return 0
    rows = _widest(sim, sim.part(each.on), ids)
    return each.scratch(rows if each.batch is None else min(rows, each.batch), sim.model) * sim.dtype.itemsize


def _widest(sim: Simulation, part: Part, ids: Tensor) -> int:
    """Rows of the largest client, padded as a batch of all of them is."""
    return width_for(int(part.sizes[ids].max()), widths(part, sim.root.device, sim.traces))


def receive_stack(
    sim: Simulation, engine: Engine, state: Tree, store: Store, clients: Tensor, round: int, newcomers: bool = False
) -> tuple[Here, Tree]:
    """The stacked `here` of clients that received the broadcast and have a record, and what they were offered."""
    shared, own = engine.offer(sim, state, None if newcomers else clients, len(clients))
    here = make_stack(sim, clients, round, shared, own)
    personal = engine.join(sim, here) if newcomers else _records(sim, engine, store, here)
    return replace(here, personal=personal), (shared, own)


def _records(sim: Simulation, engine: Engine, store: Store, here: Here) -> Personal:
    known = store.known[here.client.cpu()]
    if store.ready and bool(known.all()):
        return store.read(here.client)
    old, new = (send(torch.nonzero(some)[:, 0], here.client.device) for some in (known, ~known))
    fresh = engine.join(sim, here if len(new) == len(known) else select(here, new if len(new) else old[:1]))
    store.expect_like(fresh)  # also if nobody joins, but no record has been seen since the run was resumed
    if not len(old):
        return fresh
    if not len(new):
        return store.read(here.client)
    return tree_rows(tree_cat([store.read(here.client[old]), fresh]), torch.argsort(torch.cat((old, new))))
