"""A small GPT learns to add two numbers, after minGPT's project: a trainer with callbacks, weight
decay by kinds of parameters, and greedy generation that is scored."""

import math
import time
from collections import defaultdict

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from torch.utils.data.dataloader import DataLoader

NDIGIT, ITERS = 2, 260


class NewGELU(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        mask = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("bias", mask.view(1, 1, block_size, block_size))
        self.n_head, self.n_embd = n_head, n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = self.attn_dropout(F.softmax(att, dim=-1)) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, block_size)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(n_embd, 4 * n_embd),
                "c_proj": nn.Linear(4 * n_embd, n_embd),
                "act": NewGELU(),
                "dropout": nn.Dropout(0.1),
            }
        )
        m = self.mlp
        self.mlpf = lambda x: m.dropout(m.c_proj(m.act(m.c_fc(x))))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlpf(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer=3, n_head=3, n_embd=48):
        super().__init__()
        self.block_size = block_size
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd),
                "wpe": nn.Embedding(block_size, n_embd),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList([Block(n_embd, n_head, block_size) for _ in range(n_layer)]),
                "ln_f": nn.LayerNorm(n_embd),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def configure_optimizers(self):
        decay, no_decay = set(), set()
        for mn, m in self.named_modules():
            for pn, _ in m.named_parameters(recurse=False):
                fpn = f"{mn}.{pn}" if mn else pn
                (decay if pn == "weight" and isinstance(m, nn.Linear) else no_decay).add(fpn)
        params = dict(self.named_parameters())
        groups = [
            {"params": [params[pn] for pn in sorted(decay)], "weight_decay": 0.1},
            {"params": [params[pn] for pn in sorted(no_decay)], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=5e-4, betas=(0.9, 0.95))

    def forward(self, idx, targets=None):
        t = idx.size(1)
        assert t <= self.block_size, f"sequence of length {t}, block size is {self.block_size}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = None
        if targets is not None:
            flat = logits.view(-1, logits.size(-1))
            loss = F.cross_entropy(flat, targets.view(-1), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, max_new_tokens):
        for _ in range(max_new_tokens):
            cond = idx if idx.size(1) <= self.block_size else idx[:, -self.block_size :]
            logits, _ = self(cond)
            probs = F.softmax(logits[:, -1, :], dim=-1)
            _, idx_next = torch.topk(probs, k=1, dim=-1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


class AdditionDataset(Dataset):
    def __init__(self, split):
        num = (10**NDIGIT) ** 2
        perm = torch.randperm(num, generator=torch.Generator().manual_seed(1337))
        self.ixes = perm[:500] if split == "test" else perm[500:]

    def __len__(self):
        return self.ixes.nelement()

    def __getitem__(self, idx):
        nd = 10**NDIGIT
        a, b = divmod(self.ixes[idx].item(), nd)
        text = f"{a:0{NDIGIT}d}{b:0{NDIGIT}d}" + f"{a + b:0{NDIGIT + 1}d}"[::-1]
        dix = [int(s) for s in text]
        x, y = torch.tensor(dix[:-1]), torch.tensor(dix[1:])
        y[: NDIGIT * 2 - 1] = -1
        return x, y


class Trainer:
    def __init__(self, model, dataset):
        self.model, self.dataset = model, dataset
        self.optimizer, self.callbacks = None, defaultdict(list)
        self.iter_num, self.iter_time = 0, 0.0

    def add_callback(self, onevent, callback):
        self.callbacks[onevent].append(callback)

    def trigger_callbacks(self, onevent):
        for callback in self.callbacks.get(onevent, []):
            callback(self)

    def run(self):
        model = self.model
        self.optimizer = model.configure_optimizers()
        sampler = torch.utils.data.RandomSampler(self.dataset, replacement=True, num_samples=10**9)
        loader = DataLoader(self.dataset, sampler=sampler, batch_size=64)
        model.train()
        self.iter_time = time.time()
        data_iter = iter(loader)
        while True:
            x, y = next(data_iter)
            _, self.loss = model(x, y)
            model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.optimizer.step()
            self.trigger_callbacks("on_batch_end")
            self.iter_num += 1
            tnow = time.time()
            self.iter_dt = tnow - self.iter_time
            self.iter_time = tnow
            if self.iter_num >= ITERS:
                break


def eval_split(model, dataset, max_batches):
    right = total = 0
    factors = torch.tensor([[10**i for i in range(NDIGIT + 1)][::-1]])
    for b, (x, _) in enumerate(DataLoader(dataset, batch_size=100)):
        d1d2 = x[:, : NDIGIT * 2]
        d1d2d3 = model.generate(d1d2, NDIGIT + 1)
        d3 = d1d2d3[:, -(NDIGIT + 1) :].flip(1)
        d1 = (d1d2[:, :NDIGIT] * factors[:, 1:]).sum(1)
        d2 = (d1d2[:, NDIGIT : NDIGIT * 2] * factors[:, 1:]).sum(1)
        correct = ((d3 * factors).sum(1) == d1 + d2).cpu()
        right, total = right + int(correct.sum()), total + len(x)
        if b + 1 >= max_batches:
            break
    return right, total


torch.manual_seed(3407)
train_dataset, test_dataset = AdditionDataset("train"), AdditionDataset("test")
model = GPT(vocab_size=10, block_size=3 * NDIGIT)
trainer = Trainer(model, train_dataset)


def batch_end_callback(trainer):
    if trainer.iter_num % 20 == 0:
        print(f"iter {trainer.iter_num}: train loss {trainer.loss.item():.5f}")
    if trainer.iter_num % 100 == 0:
        model.eval()
        with torch.no_grad():
            for name, dataset in (("train", train_dataset), ("test", test_dataset)):
                right, total = eval_split(model, dataset, 4)
                print(f"{name} right {right} of {total}")
        model.train()


trainer.add_callback("on_batch_end", batch_end_callback)
trainer.run()
