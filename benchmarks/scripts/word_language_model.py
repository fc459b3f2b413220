"""A word-level language model after PyTorch's example, on sentences that it makes: an LSTM, or
`--model Transformer`. Plain SGD by hand, annealed where the validation loss does not fall."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["LSTM", "Transformer"], default="LSTM")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--device", default="cpu")
args = parser.parse_args()
torch.manual_seed(1111)
ntoken, width, bptt, batch_size, clip = 2200, 64, 20, 16, 0.25


def corpus(length, seed):
    """Words that mostly follow from the one before."""
    generator = torch.Generator().manual_seed(seed)
    jump = torch.rand(length, generator=generator) < 0.25
    fresh = torch.randint(ntoken, (length,), generator=generator)
    words, word = [], 0
    for other, new in zip(jump.tolist(), fresh.tolist(), strict=True):
        word = new if other else (word * 7 + 3) % ntoken
        words.append(word)
    return torch.tensor(words)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(args.device)


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, width)
        self.rnn = nn.LSTM(width, width, 2, dropout=0.2)
        self.decoder = nn.Linear(width, ntoken)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(2, bsz, width), weight.new_zeros(2, bsz, width)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=200):
        super().__init__()
        self.dropout = nn.Dropout(p=0.2)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0).transpose(0, 1))

    def forward(self, x):
        return self.dropout(x + self.pe[: x.size(0), :])


class TransformerModel(nn.Transformer):
    def __init__(self):
        super().__init__(d_model=width, nhead=2, dim_feedforward=128, num_encoder_layers=2)
        self.src_mask = None
        self.pos_encoder = PositionalEncoding(width)
        self.input_emb = nn.Embedding(ntoken, width)
        self.decoder = nn.Linear(width, ntoken)
        nn.init.uniform_(self.input_emb.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, src, has_mask=True):
        if has_mask:
            if self.src_mask is None or self.src_mask.size(0) != len(src):
                mask = torch.log(torch.tril(torch.ones(len(src), len(src))))
                self.src_mask = mask.to(src.device)
        else:
            self.src_mask = None
        src = self.pos_encoder(self.input_emb(src) * math.sqrt(width))
        output = self.decoder(self.encoder(src, mask=self.src_mask))
        return F.log_softmax(output, dim=-1)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


train_data = batchify(corpus(16 * 1220, 0), batch_size)
val_data = batchify(corpus(10 * 205, 1), 10)
model = TransformerModel() if args.model == "Transformer" else RNNModel()
model = model.to(args.device)
criterion = nn.NLLLoss()


def evaluate(data_source):
    model.eval()
    total_loss = 0.0
    if args.model != "Transformer":
        hidden = model.init_hidden(10)
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, bptt):
            data, targets = get_batch(data_source, i)
            if args.model == "Transformer":
                output = model(data).view(-1, ntoken)
            else:
                output, hidden = model(data, hidden)
                hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train():
    model.train()
    total_loss = 0.0
    if args.model != "Transformer":
        hidden = model.init_hidden(batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        if args.model == "Transformer":
            output = model(data).view(-1, ntoken)
        else:
            hidden = repackage_hidden(hidden)
            output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total_loss += loss.item()
        if batch % 20 == 0 and batch > 0:
            cur_loss = total_loss / 20
            print(f"| epoch {epoch} | batch {batch:3d} | lr {lr:02.2f} | loss {cur_loss:5.3f}")
            total_loss = 0


lr, best_val_loss = 5.0, None
for epoch in range(1, args.epochs + 1):
    train()
    val_loss = evaluate(val_data)
    print(f"| end of epoch {epoch} | valid loss {val_loss:5.3f} | ppl {math.exp(val_loss):8.1f}")
    if not best_val_loss or val_loss < best_val_loss:
        best_val_loss = val_loss
    else:
        lr /= 4.0
