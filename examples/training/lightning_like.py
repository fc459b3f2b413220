"""A trainer in Lightning's manner: modules with `training_step`, callbacks, a checkpoint."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.logged = {}

    def log(self, name, value):
        self.logged[name] = value.detach() if isinstance(value, torch.Tensor) else value


class AutoEncoder(LitModule):
    def __init__(self, width=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, width))

    def forward(self, x):
        return self.encoder(x)

    def training_step(self, batch, batch_idx):
        (x,) = batch
        x_hat = self.decoder(self.encoder(x))
        loss = nn.functional.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", nn.functional.mse_loss(self.decoder(self(x)), x))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


class Callback:
    def on_train_batch_end(self, trainer, module, loss):
        pass

    def on_validation_end(self, trainer, module):
        pass


class Progress(Callback):
    def on_train_batch_end(self, trainer, module, loss):
        if trainer.global_step % 10 == 0:
            print("step", trainer.global_step, f"{loss.item():.4f}")

    def on_validation_end(self, trainer, module):
        print("epoch", trainer.current_epoch, f"val {module.logged['val_loss'].item():.4f}")


class Best(Callback):
    best, state = float("inf"), None

    def on_validation_end(self, trainer, module):
        if module.logged["val_loss"] < self.best:
            self.best, self.state = (
                module.logged["val_loss"].item(),
                copy.deepcopy(module.state_dict()),
            )


class Trainer:
    def __init__(self, max_epochs, callbacks):
        self.max_epochs, self.callbacks = max_epochs, callbacks
        self.global_step = self.current_epoch = 0

    def fit(self, module, train, val):
        optimizer, scheduler = module.configure_optimizers()
        for epoch in range(self.max_epochs):
            self.current_epoch = epoch
            module.train()
            for batch_idx, batch in enumerate(train):
                loss = module.training_step(batch, batch_idx)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                self.global_step += 1
                for callback in self.callbacks:
                    callback.on_train_batch_end(self, module, loss)
            scheduler.step()
            module.eval()
            with torch.no_grad():
                for batch_idx, batch in enumerate(val):
                    module.validation_step(batch, batch_idx)
            for callback in self.callbacks:
                callback.on_validation_end(self, module)


torch.manual_seed(0)
data = torch.tanh(torch.randn(320, 3) @ torch.randn(3, 64))
best = Best()
Trainer(4, [Progress(), best]).fit(
    AutoEncoder(),
    DataLoader(TensorDataset(data[:256]), 16, shuffle=True),
    DataLoader(TensorDataset(data[256:]), 64),
)
print(f"best {best.best:.4f}", len(best.state))
