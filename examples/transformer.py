"""A loop written for the `accelerate` package. Drivetrain runs it unchanged: python, torchrun or accelerate launch."""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator

accelerator = Accelerator()

torch.manual_seed(0)
source = torch.randn(1024, 8, 16)  # 1024 sequences of 8 tokens with 16 features
target = F.layer_norm(source @ torch.randn(16, 16), (16,))  # the rule that the model has to find
data = DataLoader(TensorDataset(source, target), batch_size=32, shuffle=True)

model = torch.nn.Transformer(16, 4, 1, 1, 64, dropout=0.0, batch_first=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer, data = accelerator.prepare(model, optimizer, data)

model.train()
for epoch in range(10):
    total = torch.zeros((), device=accelerator.device)
    for source, target in data:
        optimizer.zero_grad()
        loss = F.mse_loss(model(source, source), target)
        accelerator.backward(loss)
        optimizer.step()
        total += loss.detach()
    mean = accelerator.gather(total).mean() / len(data)
    accelerator.print(f"epoch {epoch + 1:2d}  loss {mean:.4f}")

accelerator.end_training()
