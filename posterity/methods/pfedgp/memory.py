"""How much memory pFedGP's kernels take, and how many chains are computed at once so that it does not grow with all.

A chain holds a few matrices of n² numbers. Groups of chains, one after the other, keep what is held at once near `HELD`
numbers a matrix, however many nodes and chains there are; a single chain is never divided. A mean field has one chain a
node: more of it is held (`FIELD`), since factors of one matrix after another leave a GPU idle.
"""

from posterity.methods.pfedgp.polya_gamma import TERMS

HELD = 2**21  # numbers in one matrix of all chains that are computed at once: 8 MiB in float32
FIELD = 2**24  # the same, where a node has a single chain: ten classes' nodes of a client with 2,700 rows
CHAIN, SLOPE = 5, 14  # matrices that a draw, and a gradient, hold at once
DRAW = 10  # numbers that a random one takes while it is made: 64-bit words


def at_once(count: int, chains: int, rows: int, held: int) -> int:
    """How many of `count` groups of `chains` chains are computed at once on kernels of `rows` samples."""
    return max(1, min(count, held // (chains * max(rows, 1) ** 2)))


def _chains_room(rows: int, nodes: int, chains: int, steps: int, held: int) -> int:
    """Numbers held while ω is drawn for all chains of all nodes."""
    together = at_once(nodes * chains, 1, rows, held)
    each = CHAIN * rows**2 + DRAW * rows * ((steps + 1) * TERMS + 2 * steps)
    return together * each + 8 * rows**2 + 3 * nodes * chains * rows


def training_room(rows: int, classes: int, width: int, chains: int, steps: int, held: int) -> int:
    """Numbers that a training step holds for a client of so many samples, of features of this width."""
    nodes, given, asked = classes - 1, min(rows, (rows + classes) // 2), max(1, rows // 2)
    together = at_once(nodes, chains, given, held)
    each = chains * (SLOPE * given**2 + 4 * given * asked + 6 * 32 * asked) + 4 * given * (given + asked)
    slopes = nodes * (given + asked) * width
    return max(_chains_room(given, nodes, chains, steps, held), together * each) + slopes + 3 * rows * width


def conditioning_room(rows: int, classes: int, width: int, chains: int, steps: int, held: int) -> int:
    """Numbers that building the classifier, and predicting 128 samples with it, hold."""
    nodes, asked = classes - 1, 128
    look = at_once(nodes * chains, 1, rows, held) * (CHAIN * rows**2 + 3 * rows * asked) + 6 * rows**2
    answers = 8 * nodes * chains * asked * 32
    return max(_chains_room(rows, nodes, chains, steps, held), look + answers) + nodes * chains * rows + rows * width
