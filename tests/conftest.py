"""One thread: the tensors of the tests are small, and two threads only wait for each other."""

import torch

torch.set_num_threads(1)
