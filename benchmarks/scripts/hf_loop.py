"""A tiny BERT of transformers in a training loop without the Trainer, with the reads on the host
that such loops have: checks of the batch and of the loss, the accuracy of each step."""

import torch
from torch import nn
from transformers import BertConfig, BertModel

STEPS, WIDTH, LENGTH = 60, 96, 32


class Classifier(nn.Module):
    """The mean of the tokens that count, and a second look at what the first one is unsure of."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=500,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=4 * WIDTH,
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(WIDTH, 2)
        self.second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 2))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        if not mask.any(1).all():
            raise ValueError("a sentence without a token")
        features = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        logits = self.head(features)
        unsure = logits.softmax(-1).amax(-1) < 0.9
        if unsure.any():
            logits = torch.where(unsure[:, None], logits + self.second(features), logits)
        return logits


def main() -> None:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    right = 0
    for _ in range(STEPS):
        ids = torch.randint(5, 500, (8, LENGTH))
        lengths = torch.randint(LENGTH // 2, LENGTH, (8,))
        mask = (torch.arange(LENGTH) < lengths[:, None]).long()
        labels = (ids[:, 0] > 250).long()
        logits = model(ids, mask)
        loss = nn.functional.cross_entropy(logits, labels)
        if torch.isnan(loss):
            raise RuntimeError("the loss is NaN")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        right += (logits.argmax(-1) == labels).sum().item()
    print(f"loss {loss.item():.3f}, right {right / (8 * STEPS):.2f}")


if __name__ == "__main__":
    main()
