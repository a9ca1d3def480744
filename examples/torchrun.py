"""Two nodes of PyTorch train a line: `fairlog torchrun --executors 2 --executor-cores 2 -- examples/torchrun.py`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(200):
    x = torch.rand(64, 1)
    loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.6f}")  # noqa: T201 (what it is for)
dist.destroy_process_group()
